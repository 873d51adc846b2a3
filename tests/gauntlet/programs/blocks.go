// Eight goroutines fill maps with blocks, over and over, and print their sums.
package main

import (
	"crypto/sha256"
	"fmt"
	"sync"
)

func main() {
	var all sync.WaitGroup
	sums := make([][]byte, 8)
	for g := range sums {
		all.Add(1)
		go func() {
			defer all.Done()
			blocks := map[int][]byte{}
			for i := 0; i < 300000; i++ {
				k := (i*7919 + g) % 30000
				block := make([]byte, 100+k%900)
				for j := range block {
					block[j] = byte(i + j)
				}
				blocks[k] = block
			}
			sum := sha256.New()
			for i := 0; i < 30000; i++ {
				sum.Write(blocks[i])
			}
			sums[g] = sum.Sum(nil)
		}()
	}
	all.Wait()
	for _, sum := range sums {
		fmt.Printf("%x\n", sum)
	}
}
