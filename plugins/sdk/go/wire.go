//go:build wasip1

package restitch

import (
	"strings"
	"unsafe"
)

// The contract's canonical ABI: what the host calls, and the log that it offers. Places and sizes of records are those
// that wit/restitch-transform-1.0.0 has in 32-bit memory; Go's own pointers have 64 bits, so records are written word by word.

//go:wasmimport restitch:transform/log@1.0.0 log
func hostLog(level uint32, text unsafe.Pointer, length uint32)

//go:wasmimport wasi_snapshot_preview1 proc_exit
func exit(code uint32)

func log(level int, message string) {
	message = strings.ToValidUTF8(message, "\uFFFD")
	hostLog(uint32(level), unsafe.Pointer(unsafe.StringData(message)), uint32(len(message)))
}

// What the host allocated for the call that follows, so that the collector leaves it alone until it is read.
var lent [][]byte

//go:wasmexport cabi_realloc
func realloc(old, oldSize, align, size uint32) uint32 {
	if size == 0 {
		return align
	}
	memory := make([]byte, size)
	if oldSize > 0 {
		copy(memory, borrow(old, oldSize))
	}
	lent = append(lent, memory)
	return address(memory)
}

func address(memory []byte) uint32 { return uint32(uintptr(unsafe.Pointer(unsafe.SliceData(memory)))) }

// borrow returns memory that was lent. It is Go's own, so a slice of it keeps it alive.
func borrow(at, length uint32) []byte {
	if length == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(uintptr(at))), length)
}

func borrowText(at, length uint32) string {
	b := borrow(at, length)
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// Memory that the host reads after a call, kept until it has.
var held [][]byte

// record is the bytes of a record, written place by place.
type record []byte

func newRecord(size int) record {
	r := make(record, size)
	held = append(held, r)
	return r
}

func (r record) word(at int, v uint32) {
	r[at], r[at+1], r[at+2], r[at+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
}

// list writes where `count` elements lie.
func (r record) list(at int, memory []byte, count int) {
	if count > 0 {
		r.word(at, address(memory))
		r.word(at+4, uint32(count))
	}
}

func (r record) text(at int, text string) {
	memory := []byte(strings.ToValidUTF8(text, "\uFFFD"))
	held = append(held, memory)
	r.list(at, memory, len(memory))
}

func (r record) fields(at int, fields []Field) {
	memory := newRecord(12 * len(fields))
	for i, f := range fields {
		memory.text(12*i, f.Name)
		memory[12*i+8], memory[12*i+9], memory[12*i+10] = byte(f.Type), f.Precision, byte(f.Scale)
		if f.Nullable {
			memory[12*i+11] = 1
		}
	}
	r.list(at, memory, len(fields))
}

// report ends the instance after a panic, whose message the host has then.
func report() {
	if value := recover(); value != nil {
		log(levelError, panicText(value))
		exit(2)
	}
}

//go:wasmexport restitch:transform/transform@1.0.0#describe
func describe() uint32 {
	defer report()
	d := newRecord(56)
	d.text(0, definition.Name)
	d.text(8, definition.Version)
	d.text(16, definition.Summary)
	inputs := newRecord(16 * len(definition.Inputs))
	for i, input := range definition.Inputs {
		inputs.text(16*i, input.Name)
		inputs.fields(16*i+8, input.Fields)
	}
	d.list(24, inputs, len(definition.Inputs))
	d.fields(32, definition.Output)
	key := newRecord(8 * len(definition.Key))
	for i, name := range definition.Key {
		key.text(8*i, name)
	}
	d.list(40, key, len(definition.Key))
	parameters := newRecord(28 * len(definition.Parameters))
	for i, p := range definition.Parameters {
		parameters.text(28*i, p.Name)
		if !p.Required {
			parameters[28*i+8] = 1
			parameters.text(28*i+12, p.Default)
		}
		parameters.text(28*i+20, p.Help)
	}
	d.list(48, parameters, len(definition.Parameters))
	return address(d)
}

var (
	transform Transform
	output    *Output
	finished  bool
)

//go:wasmexport restitch:transform/transform@1.0.0#begin
func begin(partition, partitionLength uint32, start, end int64, zone, zoneLength uint32, asOf int64, seed uint64, parameters, count uint32) uint32 {
	defer report()
	c := &Context{
		Partition: borrowText(partition, partitionLength), StartMicros: start, EndMicros: end,
		TimeZone: borrowText(zone, zoneLength), AsOfMicros: asOf, Seed: seed, parameters: map[string]string{},
	}
	words := cast[uint32](borrow(parameters, 16*count))
	for i := 0; i < len(words); i += 4 {
		c.parameters[borrowText(words[i], words[i+1])] = borrowText(words[i+2], words[i+3])
	}
	lent = nil
	output = newOutput(definition.Output)
	var err error
	transform, err = definition.Begin(c)
	return answer(err)
}

//go:wasmexport restitch:transform/transform@1.0.0#push
func push(input, rows, columns, count uint32) uint32 {
	defer report()
	fields := definition.Inputs[input].Fields
	batch := &Batch{Input: int(input), rows: int(rows), fields: fields, columns: make([]Column, count)}
	words := cast[uint32](borrow(columns, 24*count))
	for i := range batch.columns {
		w := words[6*i:]
		batch.columns[i] = Column{
			Field: &fields[i], rows: int(rows), validity: borrow(w[0], w[1]), offsets: cast[int32](borrow(w[2], w[3])), values: borrow(w[4], w[5]),
		}
	}
	// From here on the batch keeps what it needs.
	clear(lent)
	lent = lent[:0]
	output.reset()
	return answer(transform.Push(batch, output))
}

//go:wasmexport restitch:transform/transform@1.0.0#finish
func finish() uint32 {
	defer report()
	output.reset()
	for !finished && output.Len() == 0 {
		output.more = false
		if err := transform.Finish(output); err != nil {
			return answer(err)
		}
		finished = !output.more
	}
	return answer(nil)
}

// answer returns where the result of a call lies: result<option<batch>, failure>, or begin's result<_, failure>.
func answer(err error) uint32 {
	r := newRecord(20)
	if err != nil {
		f := failureOf(err)
		r[0], r[4] = 1, byte(f.kind)
		if f.kind == failRow {
			r.word(8, uint32(f.row))
			r.text(12, f.message)
		} else {
			r.text(8, f.message)
		}
		return address(r)
	}
	if rows := output.Len(); rows > 0 {
		columns := newRecord(24 * len(output.columns))
		for i := range output.columns {
			b := &output.columns[i]
			if b.rows != rows {
				panic("output column " + b.Field.Name + " has another number of rows than the first")
			}
			if b.nulls > 0 {
				columns.list(24*i, b.validity, len(b.validity))
			}
			columns.list(24*i+8, b.offsets, len(b.offsets))
			columns.list(24*i+16, b.values, len(b.values))
		}
		r[4] = 1
		r.word(8, uint32(rows))
		r.list(12, columns, len(output.columns))
	}
	return address(r)
}

// after lets go of what the host has read.
func after() {
	clear(held)
	held = held[:0]
}

//go:wasmexport cabi_post_restitch:transform/transform@1.0.0#describe
func afterDescribe(uint32) { after() }

//go:wasmexport cabi_post_restitch:transform/transform@1.0.0#begin
func afterBegin(uint32) { after() }

//go:wasmexport cabi_post_restitch:transform/transform@1.0.0#push
func afterPush(uint32) { after() }

//go:wasmexport cabi_post_restitch:transform/transform@1.0.0#finish
func afterFinish(uint32) { after() }
