# The test guest of x86_64: a Multiboot image, so that it is started the way a kernel is.
#
# Each step that worked writes its letter to the debug console (port 0xe9):
#   P  protected mode                    L  long mode, with paging
#   M  a page at a second address        F  a page fault is raised, handled and returned from
#   I  interrupts of the interval timer  A  interrupts of the local APIC's timer
# At the end, 0x2a is written to the exit device (port 0xf4).
        .set    BASE, 0x100000
        .set    PML4, 0x200000
        .set    PDPT, 0x201000
        .set    PD, 0x202000            # four of them map the first 4 GiB
        .set    PT, 0x206000
        .set    IDT, 0x207000
        .set    DATA, 0x208000          # a page that is seen at ALIAS too
        .set    STACK, 0x20a000
        .set    ALIAS, 0x40000000
        .set    ABSENT, 0x40001000
        .set    TICKS, 20

        .code32
start:
        jmp     enter
        .balign 4
header:
        .long   0x1badb002, 0x10000, -(0x1badb002 + 0x10000)
        .long   BASE + header - start, BASE, 0, 0, BASE + enter - start

enter:
        cld
        movl    $STACK, %esp
        movb    $'P', %al
        outb    %al, $0xe9
        xorl    %eax, %eax
        movl    $PML4, %edi
        movl    $(0x9000 / 4), %ecx
        rep stosl
        movl    $(PDPT + 3), PML4
        movl    $PDPT, %edi
        movl    $(PD + 3), %eax
1:      movl    %eax, (%edi)
        addl    $8, %edi
        addl    $0x1000, %eax
        cmpl    $(PD + 0x4003), %eax
        jne     1b
        movl    $PD, %edi               # pages of 2 MiB, each at its own address
        movl    $0x83, %eax
        movl    $2048, %ecx
2:      movl    %eax, (%edi)
        addl    $8, %edi
        addl    $0x200000, %eax
        loop    2b
        movl    $(PT + 3), PD + 0x1000  # the second GiB begins with pages of 4 KiB
        movl    $(DATA + 3), PT
        movl    $PML4, %eax
        movl    %eax, %cr3
        movl    %cr4, %eax
        orl     $0x220, %eax            # PAE, FXSR
        movl    %eax, %cr4
        movl    $0xc0000080, %ecx
        rdmsr
        orl     $0x100, %eax            # EFER.LME
        wrmsr
        movl    %cr0, %eax
        andl    $~4, %eax
        orl     $0x80010002, %eax       # paging, write protection, FPU
        movl    %eax, %cr0
        lgdt    BASE + gdt_pointer - start
        ljmp    $8, $(BASE + long - start)

        .code64
long:
        movl    $16, %eax
        movl    %eax, %ds
        movl    %eax, %es
        movl    %eax, %ss
        movb    $'L', %al
        outb    %al, $0xe9

        movq    $0x1122334455667788, %rax
        movq    %rax, ALIAS + 8
        movq    DATA + 8, %xmm0
        movq    %xmm0, %rbx
        cmpq    %rax, %rbx
        jne     fail
        movb    $'M', %al
        outb    %al, $0xe9

        movl    $14, %ebx
        leaq    on_fault(%rip), %rax
        call    gate
        movl    $32, %ebx
        leaq    on_interval(%rip), %rax
        call    gate
        movl    $33, %ebx
        leaq    on_apic(%rip), %rax
        call    gate
        lidt    idt_pointer(%rip)

        movl    $0x42, ABSENT           # the handler maps it; then the store is done
        cmpl    $0x42, DATA
        jne     fail
        movb    $'F', %al
        outb    %al, $0xe9

        movl    $TICKS, %r8d            # the interval timer, by way of the 8259
        movb    $0x11, %al
        outb    %al, $0x20
        outb    %al, $0xa0
        movb    $32, %al
        outb    %al, $0x21
        movb    $40, %al
        outb    %al, $0xa1
        movb    $4, %al
        outb    %al, $0x21
        movb    $2, %al
        outb    %al, $0xa1
        movb    $1, %al
        outb    %al, $0x21
        outb    %al, $0xa1
        movb    $0xff, %al
        outb    %al, $0xa1
        movb    $0xfe, %al
        outb    %al, $0x21
        movb    $0x34, %al              # 1000 a second
        outb    %al, $0x43
        movb    $(1193 & 255), %al
        outb    %al, $0x40
        movb    $(1193 >> 8), %al
        outb    %al, $0x40
        call    ticks
        movb    $0xff, %al
        outb    %al, $0x21
        movb    $'I', %al
        outb    %al, $0xe9

        movl    $TICKS, %r8d
        movl    $0xfee00000, %esi
        movl    $0x1ff, 0xf0(%rsi)      # enabled, spurious vector 255
        movl    $11, 0x3e0(%rsi)        # the bus clock
        movl    $(0x20000 | 33), 0x320(%rsi)
        movl    $1000000, 0x380(%rsi)
        call    ticks
        movl    $0x10000, 0x320(%rsi)
        movb    $'A', %al
        outb    %al, $0xe9

        movb    $0x2a, %al
        outb    %al, $0xf4
fail:
        cli
        hlt
        jmp     fail

# Sleep until the timer's handler has counted r8d down to 0.
ticks:
        cli
        testl   %r8d, %r8d
        jle     1f
        sti
        hlt
        jmp     ticks
1:      ret

# An interrupt gate for vector ebx at rax.
gate:
        shll    $4, %ebx
        addl    $IDT, %ebx
        movw    %ax, (%rbx)
        movw    $8, 2(%rbx)
        movw    $0x8e00, 4(%rbx)
        shrq    $16, %rax
        movw    %ax, 6(%rbx)
        ret

on_fault:
        pushq   %rax
        movq    %cr2, %rax
        cmpq    $ABSENT, %rax
        jne     fail
        movl    $(DATA + 3), PT + 8
        invlpg  (%rax)
        popq    %rax
        addq    $8, %rsp                # the error code
        iretq

on_interval:
        pushq   %rax
        decl    %r8d
        movb    $0x20, %al
        outb    %al, $0x20
        popq    %rax
        iretq

on_apic:
        decl    %r8d
        movl    $0, 0xb0(%rsi)
        iretq

        .balign 8
gdt:    .quad   0, 0x00209a0000000000, 0x0000920000000000
gdt_pointer:
        .word   gdt_pointer - gdt - 1
        .long   BASE + gdt - start
idt_pointer:
        .word   34 * 16 - 1
        .quad   IDT
