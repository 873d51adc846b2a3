/* Fills so many MiB with words that tell their places, five times, and counts what reads back wrong. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t word(uint64_t round, uint64_t index) {
    uint64_t z = (round * 0x9e3779b97f4a7c15u) ^ (index * 0xbf58476d1ce4e5b9u);
    return (z ^ (z >> 31)) * 0x94d049bb133111ebu;
}

int main(int argc, char **argv) {
    uint64_t words = (uint64_t)atoi(argc > 1 ? argv[1] : "64") << 17, wrong = 0;
    uint64_t *memory = malloc(words * 8);
    if (!memory)
        return 2;
    for (uint64_t round = 0; round < 5; round++) {
        for (uint64_t i = 0; i < words; i++)
            memory[i] = word(round, i);
        for (uint64_t i = 0; i < words; i++)
            wrong += memory[i] != word(round, i);
    }
    printf("memory: %lu wrong words\n", (unsigned long)wrong);
    return wrong != 0;
}
