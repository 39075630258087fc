; Firmware for the AVR of an Arduino Uno: it prints a line and echoes what it receives.
    rjmp main
main:                       ; the stack at the end of memory, receiver and transmitter on
    ldi r16, 0xff
    out 0x3d, r16
    ldi r16, 0x08
    out 0x3e, r16
    ldi r16, 0x18
    sts 0xC1, r16
    ldi r30, lo8(banner)
    ldi r31, hi8(banner)
next:
    lpm r16, Z+
    tst r16
    breq echo
    rcall put
    rjmp next
echo:
    lds r17, 0xC0
    sbrs r17, 7
    rjmp echo
    lds r16, 0xC6
    rcall put
    rjmp echo
put:
    lds r17, 0xC0
    sbrs r17, 5
    rjmp put
    sts 0xC6, r16
    ret
banner:
    .asciz "uno is ready\r\n"
