// The test guest of aarch64: a raw image that is started the way a kernel is.
//
// Each step that worked writes its letter to the UART, in this order:
//   P  privileged mode (EL1)             M  paging, with a page at a second address
//   F  a fault is raised, handled and returned from
//   I  interrupts of the virtual timer, by way of the interrupt controller (GICv2 or GICv3)
// At the end, the machine is asked, by PSCI, to switch itself off.
        .set    UART, 0x09000000
        .set    GICD, 0x08000000
        .set    GICC, 0x08010000
        .set    GICR, 0x080a0000
        .set    TABLES, 0x40400000
        .set    TICKS, 20

// The table of exception vectors must be aligned to 2 KiB, as the image is; of it, only the
// entries for a fault and for an interrupt are used.
vectors:
        b       start

say:    ldr     x9, =UART
        str     w0, [x9]
        ret

// The next interrupt, in a thousandth of a second.
arm:    mrs     x9, cntfrq_el0
        mov     x10, #1000
        udiv    x9, x9, x10
        msr     cntv_tval_el0, x9
        mov     x9, #1
        msr     cntv_ctl_el0, x9
        isb
        ret

on_fault:
        add     x20, x20, #1
        mrs     x9, elr_el1
        add     x9, x9, #4
        msr     elr_el1, x9
        eret

on_interrupt:
        mov     x25, x30
        cbz     x23, 1f
        mrs     x11, S3_0_C12_C12_0             // ICC_IAR1_EL1
        bl      arm
        msr     S3_0_C12_C12_1, x11             // ICC_EOIR1_EL1
        b       2f
1:      ldr     w11, [x22, #0xc]
        bl      arm
        str     w11, [x22, #0x10]
2:      sub     x24, x24, #1
        mov     x30, x25
        eret

        .org    0x200
        b       on_fault
        .org    0x280
        b       on_interrupt

start:
        mrs     x0, CurrentEL
        cmp     x0, #4
        b.ne    fail
        mov     w0, #'P'
        bl      say

        // Level 1: 1 GiB blocks: devices, memory, and a second view of the memory.
        ldr     x1, =TABLES
        mov     x2, #512
        mov     x3, x1
1:      str     xzr, [x3], #8
        subs    x2, x2, #1
        b.ne    1b
        ldr     x2, =0x0060000000000401         // device memory, not executable
        str     x2, [x1]
        ldr     x2, =0x0000000040000705         // normal memory, inner shareable
        str     x2, [x1, #8]
        str     x2, [x1, #16]                   // 0x80000000 is 0x40000000 again
        dsb     sy
        ldr     x2, =0xff00                     // 0: device, 1: normal write-back
        msr     mair_el1, x2
        ldr     x2, =0x0000000200803519         // 39 bits, 4 KiB pages, cached table walks
        msr     tcr_el1, x2
        msr     ttbr0_el1, x1
        isb
        tlbi    vmalle1
        dsb     sy
        isb
        mrs     x2, sctlr_el1
        ldr     x3, =0x1005                     // paging, data and instruction caches
        orr     x2, x2, x3
        msr     sctlr_el1, x2
        isb
        ldr     x2, =0x1122334455667788
        ldr     x3, =0x80401000
        str     x2, [x3]
        dsb     sy
        ldr     x3, =0x40401000
        ldr     x4, [x3]
        cmp     x2, x4
        b.ne    fail
        mov     w0, #'M'
        bl      say

        adr     x2, vectors
        msr     vbar_el1, x2
        isb
        mov     x20, #0
        ldr     x3, =0xc0000000                 // not mapped
        str     x2, [x3]
        cmp     x20, #1
        b.ne    fail
        mov     w0, #'F'
        bl      say

        ldr     x21, =GICD
        ldr     x22, =GICC
        mov     w5, #(1 << 27)                  // the virtual timer
        mrs     x23, id_aa64pfr0_el1
        ubfx    x23, x23, #24, #4
        cbz     x23, 2f
        ldr     x6, =GICR                       // GICv3
        mov     w7, #0x12
        str     w7, [x21]
        str     wzr, [x6, #0x14]
3:      ldr     w7, [x6, #0x14]
        tbnz    w7, #2, 3b
        add     x6, x6, #0x10000
        mov     w7, #-1
        str     w7, [x6, #0x80]
        str     w5, [x6, #0x100]
        mov     x7, #1
        msr     S3_0_C12_C12_5, x7              // ICC_SRE_EL1
        isb
        mov     x7, #0xff
        msr     S3_0_C4_C6_0, x7                // ICC_PMR_EL1
        mov     x7, #1
        msr     S3_0_C12_C12_7, x7              // ICC_IGRPEN1_EL1
        isb
        b       4f
2:      mov     w7, #1                          // GICv2
        str     w7, [x21]
        str     w5, [x21, #0x100]
        mov     w7, #0xff
        str     w7, [x22, #4]
        mov     w7, #1
        str     w7, [x22]
4:      mov     x24, #TICKS
        bl      arm
5:      msr     daifset, #2
        cbz     x24, 6f
        wfi
        msr     daifclr, #2
        isb
        b       5b
6:      mov     w0, #'I'
        bl      say
        ldr     w0, =0x84000008                 // SYSTEM_OFF
        hvc     #0
fail:   wfi
        b       fail

        .ltorg
