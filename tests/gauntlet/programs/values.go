// Serves values over HTTP: /N is the Nth, SIZE bytes that only N decides.
//
//	values COUNT SIZE
//
// Prints its port when all values are made.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
)

func value(n, size int) string {
	word := fmt.Sprintf("%d.", n)
	return strings.Repeat(word, size/len(word)+1)[:size]
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	size, _ := strconv.Atoi(os.Args[2])
	values := make(map[int]string, count)
	for n := 0; n < count; n++ {
		values[n] = value(n, size)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Path[1:])
		w.Write([]byte(values[n]))
	})))
}
