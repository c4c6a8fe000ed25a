//go:build !unix

package hostile

import "time"

// cpu would be the processor time that this process has used. Where nothing says it, no
// pace is kept.
func cpu() time.Duration { return 0 }
