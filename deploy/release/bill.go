package main

import (
	"debug/buildinfo"
	"encoding/json"
	"time"
)

// bill writes what is in a binary, as the Go tool recorded it there: its modules, their versions and sums, in CycloneDX
// 1.5. The standard library is a component, too: its vulnerabilities are reported by Go's version. A replaced module is
// listed as its replacement, which is the code that was built.
func (r *release) bill(name, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	purl := func(path, version string) string { return "pkg:golang/" + path + "@" + version }
	components := []object{{"type": "library", "name": "std", "version": info.GoVersion, "purl": purl("std", info.GoVersion)}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, object{
			"type": "library", "name": m.Path, "version": m.Version, "purl": purl(m.Path, m.Version),
			"properties": []object{{"name": "go.sum", "value": m.Sum}},
		})
	}
	data, err := json.MarshalIndent(object{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata": object{
			"timestamp": r.made.Format(time.RFC3339),
			"component": object{"type": "application", "name": info.Main.Path, "version": r.version, "purl": purl(info.Main.Path, r.version)},
		},
		"components": components,
	}, "", "  ")
	if err != nil {
		return err
	}
	return r.write(name, append(data, '\n'))
}
