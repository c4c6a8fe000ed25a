package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The files are what the code writes.
func TestDashboardsAreWritten(t *testing.T) {
	fresh := t.TempDir()
	if err := write(fresh); err != nil {
		t.Fatal(err)
	}
	for _, d := range dashboards {
		want, err := os.ReadFile(filepath.Join(fresh, d.uid+".json"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("dashboards", d.uid+".json"))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s is not what make dashboards writes (%v)", d.uid, err)
		}
	}
}
