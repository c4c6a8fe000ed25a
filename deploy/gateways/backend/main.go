// Command backend answers each request with 200, and with the header x-tokens of the request in its response.
package main

import (
	"log"
	"net/http"
	"time"
)

func main() {
	server := &http.Server{Addr: ":8000", ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { w.Header().Set("x-tokens", r.Header.Get("x-tokens")) })}
	log.Fatal(server.ListenAndServe())
}
