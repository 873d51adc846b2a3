/* Four threads allocate, fill, read and free blocks of many sizes, and print what they read. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, BLOCKS = 6000, ROUNDS = 20000 };

static void *work(void *argument)
{
	uint64_t random = (uintptr_t)argument * 77 + 1, sum = 0;
	char **block = calloc(BLOCKS, sizeof *block);
	size_t *bytes = calloc(BLOCKS, sizeof *bytes);

	for (int round = 0; round < ROUNDS; round++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		int i = random % BLOCKS;
		if (block[i])
			for (size_t k = 0; k < bytes[i]; k += 512)
				sum = sum * 31 + (unsigned char)block[i][k];
		free(block[i]);
		bytes[i] = 16 + (random >> 20) % 9000;
		block[i] = malloc(bytes[i]);
		memset(block[i], (int)(random >> 9), bytes[i]);
	}
	return (void *)sum;
}

int main(void)
{
	pthread_t thread[THREADS];

	for (long i = 0; i < THREADS; i++)
		pthread_create(thread + i, 0, work, (void *)(i + 1));
	for (int i = 0; i < THREADS; i++) {
		void *sum;
		pthread_join(thread[i], &sum);
		printf("%p\n", sum);
	}
}
