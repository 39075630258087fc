@ Firmware for the Cortex-M3 of an MPS2 board: it prints a line and echoes what it receives.
    .syntax unified
    .cpu cortex-m3
    .thumb
    .word 0x20001000        @ the stack, then where to begin
    .word start + 1
    .thumb_func
start:                      @ the UART of an MPS2 board: baud rate, receiver and transmitter on
    ldr r0, =0x40004000
    movs r1, #16
    str r1, [r0, #16]
    movs r1, #3
    str r1, [r0, #8]
    ldr r2, =banner
next:
    ldrb r1, [r2], #1
    cbz r1, echo
    bl put
    b next
echo:
    ldr r3, [r0, #4]
    lsls r3, r3, #30
    bpl echo
    ldr r1, [r0]
    bl put
    b echo
put:
    ldr r3, [r0, #4]
    lsls r3, r3, #31
    bmi put
    str r1, [r0]
    bx lr
    .ltorg
banner:
    .asciz "cortex-m3 is ready\r\n"
