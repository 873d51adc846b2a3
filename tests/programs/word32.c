/* A 32-bit program, without libc: fills 48 MiB again and again, and finds them again. Compiled with -m32 -nostdlib -static. */

static long call(long number, long argument) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "0"(number), "b"(argument) : "memory");
    return result;
}

enum { EXIT = 1, BRK = 45, BYTES = 48 << 20, PAGE = 4096 };

void _start(void) {
    long start = (call(BRK, 0) + PAGE - 1) & -PAGE;
    int wrong = call(BRK, start + BYTES) != start + BYTES;
    for (int round = 1; !wrong && round < 100; round++) {
        for (long at = start; at < start + BYTES; at += PAGE)
            *(volatile long *)at = at ^ round;
        for (long at = start; at < start + BYTES; at += PAGE)
            wrong |= *(volatile long *)at != (at ^ round);
    }
    call(EXIT, wrong);
}
