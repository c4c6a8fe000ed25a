// Package coordination has the flags that say how nodes share limits by default: serve decides, and check declares, by
// the same ones. An error names the setting, its value and its bounds.
package coordination
