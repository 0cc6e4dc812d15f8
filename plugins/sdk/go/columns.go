package restitch

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// Type is what a column holds.
type Type uint8

// The types of columns, and what Go makes of them.
const (
	Boolean       Type = iota // bool
	Int32                     // int32
	Int64                     // int64
	Float32                   // float32
	Float64                   // float64
	DecimalType               // Decimal
	String                    // string
	JSONType                  // JSON
	Binary                    // []byte
	DateType                  // Date
	TimeType                  // Time
	TimestampType             // Timestamp
)

var typeNames = [...]string{"boolean", "int32", "int64", "float32", "float64", "decimal", "string", "json", "binary", "date", "time", "timestamp"}

func (t Type) String() string { return typeNames[t] }

// Returns the bytes of a value; 0: bits, -1: any number.
func (t Type) size() int {
	switch t {
	case Boolean:
		return 0
	case Int32, Float32, DateType:
		return 4
	case DecimalType:
		return 16
	case String, JSONType, Binary:
		return -1
	}
	return 8
}

// Field is a named, typed column.
type Field struct {
	Name      string
	Type      Type
	Nullable  bool
	Precision uint8 // of a decimal: digits in all
	Scale     int8  // of a decimal: digits after the point
}

// Column is one column of a batch, in Arrow's layout; its slices are the batch's own memory. Do not write to them.
type Column struct {
	Field    *Field
	rows     int
	validity []byte
	offsets  []int32
	values   []byte
}

func (c *Column) want(t ...Type) {
	for _, t := range t {
		if c.Field.Type == t {
			return
		}
	}
	panic("column " + c.Field.Name + " is " + c.Field.Type.String() + ", not " + t[0].String())
}

// IsNull returns whether the row has no value. The other methods return zeros, or no bytes, for it.
func (c *Column) IsNull(row int) bool {
	return len(c.validity) > 0 && c.validity[row>>3]>>(row&7)&1 == 0
}

// Bool returns the row's value.
func (c *Column) Bool(row int) bool {
	c.want(Boolean)
	return c.bit(row)
}

func (c *Column) bit(row int) bool { return c.values[row>>3]>>(row&7)&1 == 1 }

// Int32s returns the values of an int32 or date column.
func (c *Column) Int32s() []int32 {
	c.want(Int32, DateType)
	return cast[int32](c.values)
}

// Int64s returns the values of an int64, time or timestamp column.
func (c *Column) Int64s() []int64 {
	c.want(Int64, TimeType, TimestampType)
	return cast[int64](c.values)
}

// Float32s returns the values.
func (c *Column) Float32s() []float32 {
	c.want(Float32)
	return cast[float32](c.values)
}

// Float64s returns the values.
func (c *Column) Float64s() []float64 {
	c.want(Float64)
	return cast[float64](c.values)
}

// Decimals returns the values.
func (c *Column) Decimals() []Decimal {
	c.want(DecimalType)
	return cast[Decimal](c.values)
}

// Bytes returns the row's value of a binary, string or JSON column.
func (c *Column) Bytes(row int) []byte {
	c.want(Binary, String, JSONType)
	return c.bytes(row)
}

// Text returns the row's value of a string or JSON column, borrowed from the batch: strings.Clone what you keep for long.
func (c *Column) Text(row int) string {
	c.want(String, JSONType)
	return c.text(row)
}

func (c *Column) bytes(row int) []byte {
	start, end := c.offsets[row], c.offsets[row+1]
	return c.values[start:end:end]
}

func (c *Column) text(row int) string {
	b := c.bytes(row)
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// cast returns the bytes as values of another type, in the same memory. The contract is little-endian, as is wasm.
func cast[T any](bytes []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(bytes))), len(bytes)/int(unsafe.Sizeof(t)))
}

// Builder is one column of the output, value by value.
type Builder struct {
	Field    *Field
	rows     int
	nulls    int
	validity []byte
	offsets  []byte
	values   []byte
}

func (b *Builder) want(t ...Type) {
	for _, t := range t {
		if b.Field.Type == t {
			return
		}
	}
	panic("output column " + b.Field.Name + " is " + b.Field.Type.String() + ", not " + t[0].String())
}

func (b *Builder) mark(valid bool) {
	if b.rows&7 == 0 {
		b.validity = append(b.validity, 0)
	}
	if valid {
		b.validity[b.rows>>3] |= 1 << (b.rows & 7)
	} else {
		b.nulls++
	}
	b.rows++
}

// Null adds a row without a value.
func (b *Builder) Null() {
	if !b.Field.Nullable {
		panic("output column " + b.Field.Name + " may hold no nulls")
	}
	switch size := b.Field.Type.size(); size {
	case 0:
		b.putBit(false)
	case -1:
		b.putBytes(nil)
	default:
		var zeros [16]byte
		b.values = append(b.values, zeros[:size]...)
	}
	b.mark(false)
}

// Bool adds a value.
func (b *Builder) Bool(v bool) {
	b.want(Boolean)
	b.putBit(v)
	b.mark(true)
}

// Int32 adds a value of an int32 or date column.
func (b *Builder) Int32(v int32) {
	b.want(Int32, DateType)
	b.put32(uint32(v))
	b.mark(true)
}

// Int64 adds a value of an int64, time or timestamp column.
func (b *Builder) Int64(v int64) {
	b.want(Int64, TimeType, TimestampType)
	b.put64(uint64(v))
	b.mark(true)
}

// Float32 adds a value.
func (b *Builder) Float32(v float32) {
	b.want(Float32)
	b.put32(math.Float32bits(v))
	b.mark(true)
}

// Float64 adds a value.
func (b *Builder) Float64(v float64) {
	b.want(Float64)
	b.put64(math.Float64bits(v))
	b.mark(true)
}

// Decimal adds a value.
func (b *Builder) Decimal(v Decimal) {
	b.want(DecimalType)
	b.put64(v.Lo)
	b.put64(uint64(v.Hi))
	b.mark(true)
}

// Text adds a value of a string or JSON column.
func (b *Builder) Text(v string) {
	b.want(String, JSONType)
	b.putBytes(unsafe.Slice(unsafe.StringData(v), len(v)))
	b.mark(true)
}

// Bytes adds a value of a binary, string or JSON column. The bytes are copied.
func (b *Builder) Bytes(v []byte) {
	b.want(Binary, String, JSONType)
	b.putBytes(v)
	b.mark(true)
}

func (b *Builder) put32(v uint32) { b.values = binary.LittleEndian.AppendUint32(b.values, v) }
func (b *Builder) put64(v uint64) { b.values = binary.LittleEndian.AppendUint64(b.values, v) }

func (b *Builder) putBit(v bool) {
	if b.rows&7 == 0 {
		b.values = append(b.values, 0)
	}
	if v {
		b.values[b.rows>>3] |= 1 << (b.rows & 7)
	}
}

func (b *Builder) putBytes(v []byte) {
	if b.rows == 0 {
		b.offsets = append(b.offsets, 0, 0, 0, 0)
	}
	if len(v) > math.MaxInt32-len(b.values) {
		panic("a column of one batch holds at most 2 GiB: return rows earlier")
	}
	b.values = append(b.values, v...)
	b.offsets = binary.LittleEndian.AppendUint32(b.offsets, uint32(len(b.values)))
}

// reset starts again, in the same memory.
func (b *Builder) reset() {
	b.rows, b.nulls = 0, 0
	b.validity, b.offsets, b.values = b.validity[:0], b.offsets[:0], b.values[:0]
}
