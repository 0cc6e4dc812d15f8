// Package restitch is the SDK for transforms in Go: typed rows in, typed rows out.
// A transform does no I/O: it has its input, its parameters and a log, and nothing else.
// It is built with the stock Go tool-chain: restitch transform build DIR.
package restitch

import (
	"errors"
	"reflect"
	"runtime"
	"strconv"
	"strings"
)

// Transform is the state of one partition. Every partition gets a fresh one, in a fresh instance.
type Transform interface {
	// Push takes a batch of one input, and may put rows.
	Push(batch *Batch, output *Output) error
	// Finish puts the rows that are left. It is called once, and again for as long as it calls output.More.
	Finish(output *Output) error
}

// Definition says what a transform is. The same rows must for ever come out of one Version.
type Definition struct {
	Name    string
	Version string
	Summary string // one sentence
	// The first input is the windowed one; the others are lookups, pushed whole before it.
	Inputs []Input
	Output []Field
	// The output columns that identify a row inside its partition.
	Key        []string
	Parameters []Parameter
	// Begin starts a partition.
	Begin func(*Context) (Transform, error)
}

// Input is rows that are read.
type Input struct {
	Name   string
	Fields []Field
}

// Parameter is a setting that a dataset may give under `params` in restitch.toml.
type Parameter struct {
	Name     string
	Default  string
	Required bool // it has to be given: Default does not count
	Help     string
}

// Context is what a transform may know about the run.
type Context struct {
	Partition   string // its name, such as 2026-05-01
	StartMicros int64  // inclusive, UTC
	EndMicros   int64  // exclusive, UTC
	TimeZone    string // the dataset's, an IANA name
	AsOfMicros  int64  // the only clock there is, UTC
	Seed        uint64 // the only randomness there is
	parameters  map[string]string
}

// NewContext returns a context with these parameters, for tests.
func NewContext(parameters map[string]string) *Context { return &Context{parameters: parameters} }

// Parameter returns the value of a parameter, its default if none was given.
func (c *Context) Parameter(name string) string {
	value, ok := c.parameters[name]
	if !ok {
		panic("the transform does not declare a parameter " + strconv.Quote(name))
	}
	return value
}

const (
	failParameters = iota
	failRow
	failOther
)

type failure struct {
	kind    int
	row     int
	message string
}

func (f *failure) Error() string { return f.message }

// RowError says that a row of the batch, counted from 0, cannot be taken.
func RowError(row int, message string) error { return &failure{failRow, row, message} }

// ParameterError says that a parameter has a value that makes no sense.
func ParameterError(message string) error { return &failure{kind: failParameters, message: message} }

func failureOf(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return &failure{kind: failOther, message: err.Error()}
}

const (
	levelDebug = iota
	levelInfo
	levelWarn
	levelError
)

// Debug adds a line for the author to the partition's log.
func Debug(message string) { log(levelDebug, message) }

// Info adds a line worth knowing to the partition's log.
func Info(message string) { log(levelInfo, message) }

// Warn adds a warning to the partition's log.
func Warn(message string) { log(levelWarn, message) }

var definition Definition

// Export makes the transform the one of this module. Call it in init; main is left empty.
func Export(d Definition) { definition = d }

// panicText returns what a panic said, and where: the functions of the transform that it went through.
func panicText(value any) string {
	text := strings.Builder{}
	text.WriteString("panic: ")
	switch v := value.(type) {
	case error:
		text.WriteString(v.Error())
	case string:
		text.WriteString(v)
	case interface{ String() string }:
		text.WriteString(v.String())
	default:
		text.WriteString("a value of type " + reflect.TypeOf(value).String())
	}
	counters := make([]uintptr, 64)
	frames := runtime.CallersFrames(counters[:runtime.Callers(3, counters)])
	for {
		frame, more := frames.Next()
		if !strings.HasPrefix(frame.Function, "runtime.") && !strings.HasPrefix(frame.Function, "restitch.") && frame.Function != "" {
			text.WriteString("\n  " + frame.Function + " (" + frame.File + ":" + strconv.Itoa(frame.Line) + ")")
		}
		if !more {
			return text.String()
		}
	}
}
