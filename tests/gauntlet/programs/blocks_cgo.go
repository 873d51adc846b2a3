// Blocks of C's allocator and of Go's, read back.
package main

/*
#include <stdlib.h>
#include <string.h>

static long work(int n)
{
	char **block = malloc(n * sizeof *block);
	long sum = 0;
	for (int i = 0; i < n; i++) {
		block[i] = malloc(4000);
		memset(block[i], i, 4000);
	}
	for (int i = 0; i < n; i++) {
		sum += block[i][i % 4000];
		free(block[i]);
	}
	free(block);
	return sum;
}
*/
import "C"

import "fmt"

func main() {
	blocks := make([][]byte, 20000)
	for i := range blocks {
		blocks[i] = make([]byte, 3000)
		for j := range blocks[i] {
			blocks[i][j] = byte(i * j)
		}
	}
	fmt.Println(C.work(20000))
	sum := 0
	for _, block := range blocks {
		for _, value := range block {
			sum += int(value)
		}
	}
	fmt.Println(sum)
}
