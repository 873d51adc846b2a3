// A program without libc: its own system calls, stacks and garbage collector. Prints what it computes of a tree of 200,000 strings and of
// 96 MiB in blocks.
package main

import (
	"fmt"
	"hash/fnv"
	"sort"
)

type node struct {
	left, right *node
	text        string
}

func insert(n *node, text string) *node {
	if n == nil {
		return &node{text: text}
	}
	if text < n.text {
		n.left = insert(n.left, text)
	} else {
		n.right = insert(n.right, text)
	}
	return n
}

func walk(n *node, visit func(string)) {
	if n != nil {
		walk(n.left, visit)
		visit(n.text)
		walk(n.right, visit)
	}
}

func main() {
	blocks := make([][]byte, 0)
	for i := 0; i < 24; i++ {
		block := make([]byte, 4<<20)
		for j := range block {
			block[j] = byte(i * j >> 3)
		}
		blocks = append(blocks, block)
	}
	var root *node
	x := uint64(88172645463325252)
	for i := 0; i < 200000; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		root = insert(root, fmt.Sprintf("%016x", x))
	}
	hash := fnv.New64a()
	walk(root, func(text string) { hash.Write([]byte(text)) })
	sort.Slice(blocks, func(i, j int) bool { return blocks[i][77777] < blocks[j][77777] })
	for _, block := range blocks {
		hash.Write(block)
	}
	fmt.Println(hash.Sum64())
}
