// Makes garbage, and checks what is not, until its input ends.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"
)

type node struct {
	next  *node
	value int
}

func list(length int) *node {
	var first *node
	for i := 0; i < length; i++ {
		first = &node{first, i}
	}
	return first
}

func main() {
	var ends, rounds atomic.Int64
	done := make(chan bool)
	for i := 0; i < 4; i++ {
		go func() {
			for ends.Load() == 0 {
				value := 10000
				for at := list(10000); at != nil; at = at.next {
					if value--; at.value != value {
						fmt.Println("wrong")
						os.Exit(1)
					}
				}
				rounds.Add(1)
				runtime.GC()
			}
			done <- true
		}()
	}
	fmt.Println("collecting")
	io.ReadAll(os.Stdin)
	ends.Store(1)
	for i := 0; i < 4; i++ {
		<-done
	}
	if rounds.Load() > 4 {
		fmt.Println("right")
	}
}
