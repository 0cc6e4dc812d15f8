/* The contract's canonical ABI for C: what the host calls, and the log that it offers.
 * Never keeps what a batch holds after push returns; what goes back is freed in cabi_post_….
 * The structs that start with wire_ are laid out as wit/restitch-transform-1.0.0 lays out its records in 32-bit memory. */
#include "restitch.h"
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(void *) == 4, "build it for wasm32: restitch transform build DIR");

#define EXPORT(name) __attribute__((export_name("restitch:transform/transform@1.0.0#" name)))
#define AFTER(name) __attribute__((export_name("cabi_post_restitch:transform/transform@1.0.0#" name)))

__attribute__((import_module("restitch:transform/log@1.0.0"), import_name("log"))) void wire_log(uint32_t level, const char *text, size_t length);

enum { LEVEL_DEBUG, LEVEL_INFO, LEVEL_WARN, LEVEL_ERROR };

typedef struct {
    const void *data;
    size_t length;
} wire_list;

typedef struct {
    wire_list name;
    uint8_t type, precision;
    int8_t scale;
    bool nullable;
} wire_field;

typedef struct {
    wire_list name, fields;
} wire_input;

typedef struct {
    wire_list name;
    bool has_fallback;
    wire_list fallback, help;
} wire_parameter;

typedef struct {
    wire_list name, version, summary, inputs, output, key, parameters;
} wire_descriptor;

typedef struct {
    wire_list validity, offsets, values;
} wire_column;

typedef struct {
    size_t rows;
    wire_list columns;
} wire_batch;

/* result<option<batch>, failure>; begin's result has no batch, and the same size. */
typedef struct {
    uint8_t is_error;
    union {
        struct {
            uint8_t is_some;
            wire_batch batch;
        } ok;
        struct {
            uint8_t kind;
            union {
                wire_list message;
                struct {
                    size_t row;
                    wire_list message;
                } row;
            };
        } error;
    };
} wire_result;

_Static_assert(sizeof(wire_field) == 12 && sizeof(wire_parameter) == 28 && sizeof(wire_descriptor) == 56, "describe");
_Static_assert(sizeof(wire_column) == 24 && sizeof(wire_result) == 20, "push");

/* ---- Memory ---- */

void *restitch_allocate(size_t size) {
    void *memory = calloc(1, size ? size : 1);
    if (!memory) restitch_panic("out of memory");
    return memory;
}

void *restitch_reallocate(void *memory, size_t size) {
    memory = realloc(memory, size ? size : 1);
    if (!memory) restitch_panic("out of memory");
    return memory;
}

/* The host calls it for each list and text that it passes. */
__attribute__((export_name("cabi_realloc"))) void *cabi_realloc(void *memory, size_t old_size, size_t align, size_t size) {
    (void)old_size;
    /* Nothing needs a place, but a place that is aligned. */
    if (size == 0) return (void *)align;
    return restitch_reallocate(memory, size);
}

static void release(wire_list list) {
    if (list.length) free((void *)list.data);
}

restitch_bytes restitch_copy(restitch_bytes bytes) {
    char *copy = restitch_allocate(bytes.length + 1);
    if (bytes.length) memcpy(copy, bytes.data, bytes.length);
    return (restitch_bytes){copy, bytes.length};
}

restitch_bytes restitch_text(const char *text) { return (restitch_bytes){text, strlen(text)}; }

bool restitch_equal(restitch_bytes a, restitch_bytes b) { return a.length == b.length && (!a.length || memcmp(a.data, b.data, a.length) == 0); }

/* ---- Log and failures ---- */

/* Returns how long the UTF-8 character at `s` is, 0 if there is none. */
static size_t character(const uint8_t *s, size_t length) {
    if (s[0] < 0x80) return 1;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n > length) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;
    return n;
}

/* Returns a copy that is UTF-8 for sure: the host takes no other text. */
static wire_list message_of(const char *text) {
    size_t length = strlen(text);
    uint8_t *copy = restitch_allocate(length + 1);
    memcpy(copy, text, length);
    for (size_t i = 0, n; i < length; i += n) {
        n = character(copy + i, length - i);
        if (n == 0) {
            copy[i] = '?';
            n = 1;
        }
    }
    return (wire_list){copy, length};
}

static void say(uint32_t level, const char *text) {
    wire_list message = message_of(text);
    wire_log(level, message.data, message.length);
    free((void *)message.data);
}

void restitch_debug(const char *message) { say(LEVEL_DEBUG, message); }
void restitch_info(const char *message) { say(LEVEL_INFO, message); }
void restitch_warn(const char *message) { say(LEVEL_WARN, message); }

_Noreturn void restitch_panic(const char *message) {
    wire_log(LEVEL_ERROR, message, strlen(message));
    __builtin_trap();
}

enum { FAILURE_PARAMETERS, FAILURE_ROW, FAILURE_OTHER };

static wire_result result;

static restitch_status fail(uint8_t kind, size_t row, const char *text) {
    wire_list message = message_of(text);
    result = (wire_result){.is_error = 1};
    result.error.kind = kind;
    if (kind == FAILURE_ROW) {
        result.error.row.row = row;
        result.error.row.message = message;
    } else {
        result.error.message = message;
    }
    return RESTITCH_FAILED;
}

restitch_status restitch_fail_row(size_t row, const char *message) { return fail(FAILURE_ROW, row, message); }
restitch_status restitch_fail_parameters(const char *message) { return fail(FAILURE_PARAMETERS, 0, message); }
restitch_status restitch_fail(const char *message) { return fail(FAILURE_OTHER, 0, message); }

_Noreturn void restitch_wrong_column(const restitch_batch *batch, size_t column, const char *wanted) {
    char text[256] = "the input has no column of that index";
    if (column < batch->columns_count) {
        strcpy(text, "input column ");
        strncat(text, batch->columns[column].field->name, 120);
        strcat(strcat(text, " is not of type "), wanted);
    }
    restitch_panic(text);
}

/* ---- Parameters and decimals ---- */

restitch_bytes restitch_parameter_of(const restitch_context *context, const char *name) {
    for (size_t i = 0; i < context->parameters_count; i++)
        if (restitch_equal(context->parameters[i].name, restitch_text(name))) return context->parameters[i].value;
    restitch_panic("BUG: restitch_parameter_of: the transform does not declare this parameter");
}

bool restitch_parse_int64(restitch_bytes text, int64_t *number) {
    size_t i = text.length && (text.data[0] == '-' || text.data[0] == '+');
    bool negative = i && text.data[0] == '-';
    if (i == text.length) return false;
    int64_t sum = 0;
    for (; i < text.length; i++) {
        int digit = text.data[i] - '0';
        if (digit < 0 || digit > 9) return false;
        if (__builtin_mul_overflow(sum, 10, &sum) || __builtin_add_overflow(sum, negative ? -digit : digit, &sum)) return false;
    }
    *number = sum;
    return true;
}

bool restitch_decimal_add(restitch_decimal a, restitch_decimal b, restitch_decimal *sum) {
    const restitch_decimal end = (restitch_decimal)10000000000000000000ull * 10000000000000000000ull; /* 10^38 */
    restitch_decimal s;
    if (__builtin_add_overflow(a, b, &s) || s >= end || s <= -end) return false;
    *sum = s;
    return true;
}

/* ---- Rows that go back ---- */

typedef struct {
    char *data;
    size_t length, capacity;
} buffer;

typedef struct {
    const restitch_field *field;
    size_t rows, nulls;
    buffer validity, offsets, values;
} builder;

struct restitch_output {
    size_t rows;
    builder *columns;
};

static restitch_output output;

/* Returns room for `size` more bytes. */
static inline char *grow(buffer *b, size_t size) {
    if (b->capacity - b->length < size) {
        size_t capacity = b->capacity < 512 ? 1024 : b->capacity * 2;
        if (capacity < b->length + size) capacity = b->length + size;
        b->data = restitch_reallocate(b->data, capacity);
        b->capacity = capacity;
    }
    char *end = b->data + b->length;
    b->length += size;
    return end;
}

/* Returns the column that takes a value of one of these types now, or ends the instance. */
static inline builder *column_of(restitch_output *o, size_t column, unsigned types, const char *wanted) {
    if (column >= restitch_transform.output_count) restitch_panic("the output has no column of that index");
    builder *b = &o->columns[column];
    if (b->rows != o->rows || !(types >> b->field->type & 1)) {
        char text[256] = "output column ";
        strncat(text, b->field->name, 120);
        strcat(text, b->rows != o->rows ? " already has its value in this row" : " is not of type ");
        if (b->rows == o->rows) strcat(text, wanted);
        restitch_panic(text);
    }
    return b;
}

/* Counts the row, and notes whether it has a value. */
static inline void mark(builder *b, bool valid) {
    if (b->rows % 8 == 0) *grow(&b->validity, 1) = 0;
    b->validity.data[b->rows / 8] |= (char)(valid << (b->rows % 8));
    b->nulls += !valid;
    b->rows++;
}

static inline void put_bit(builder *b, bool bit) {
    if (b->rows % 8 == 0) *grow(&b->values, 1) = 0;
    b->values.data[b->rows / 8] |= (char)(bit << (b->rows % 8));
}

static void put_sized(builder *b, restitch_bytes value) {
    if (b->rows == 0) memset(grow(&b->offsets, 4), 0, 4);
    if (value.length > INT32_MAX - b->values.length) restitch_panic("a column of one batch holds at most 2 GiB: return rows earlier");
    if (value.length) memcpy(grow(&b->values, value.length), value.data, value.length);
    int32_t end = (int32_t)b->values.length;
    memcpy(grow(&b->offsets, 4), &end, 4);
}

void restitch_put_null(restitch_output *o, size_t column) {
    builder *b = column_of(o, column, ~0u, "");
    switch (b->field->type) {
    case RESTITCH_BOOLEAN: put_bit(b, false); break;
    case RESTITCH_INT32: case RESTITCH_FLOAT32: case RESTITCH_DATE: memset(grow(&b->values, 4), 0, 4); break;
    case RESTITCH_DECIMAL: memset(grow(&b->values, 16), 0, 16); break;
    case RESTITCH_STRING: case RESTITCH_JSON: case RESTITCH_BINARY: put_sized(b, (restitch_bytes){0}); break;
    default: memset(grow(&b->values, 8), 0, 8);
    }
    mark(b, false);
}

void restitch_put_bool(restitch_output *o, size_t column, bool value) {
    builder *b = column_of(o, column, 1u << RESTITCH_BOOLEAN, "boolean");
    put_bit(b, value);
    mark(b, true);
}

#define PUT(name, c_type, types, wanted)                                    \
    void name(restitch_output *o, size_t column, c_type value) {            \
        builder *b = column_of(o, column, types, wanted);                   \
        memcpy(grow(&b->values, sizeof value), &value, sizeof value);       \
        mark(b, true);                                                      \
    }
PUT(restitch_put_int32, int32_t, 1u << RESTITCH_INT32 | 1u << RESTITCH_DATE, "int32 or date")
PUT(restitch_put_int64, int64_t, 1u << RESTITCH_INT64 | 1u << RESTITCH_TIME | 1u << RESTITCH_TIMESTAMP, "int64, time or timestamp")
PUT(restitch_put_float32, float, 1u << RESTITCH_FLOAT32, "float32")
PUT(restitch_put_float64, double, 1u << RESTITCH_FLOAT64, "float64")
PUT(restitch_put_decimal, restitch_decimal, 1u << RESTITCH_DECIMAL, "decimal")

void restitch_put_bytes(restitch_output *o, size_t column, restitch_bytes value) {
    builder *b = column_of(o, column, 1u << RESTITCH_STRING | 1u << RESTITCH_JSON | 1u << RESTITCH_BINARY, "string, json or binary");
    put_sized(b, value);
    mark(b, true);
}

void restitch_end_row(restitch_output *o) {
    for (size_t i = 0; i < restitch_transform.output_count; i++) {
        if (o->columns[i].rows != o->rows) continue;
        if (!o->columns[i].field->nullable) {
            char text[256] = "a row was ended without a value for output column ";
            restitch_panic(strncat(text, o->columns[i].field->name, 120));
        }
        restitch_put_null(o, i);
    }
    o->rows++;
}

size_t restitch_rows(const restitch_output *o) { return o->rows; }

/* Starts the output again; what it allocated is used again. */
static void reset_output(void) {
    result = (wire_result){0};
    size_t count = restitch_transform.output_count;
    if (!output.columns) output.columns = restitch_allocate(count * sizeof *output.columns);
    for (size_t i = 0; i < count; i++) {
        builder *b = &output.columns[i];
        b->field = &restitch_transform.output[i];
        b->rows = b->nulls = b->validity.length = b->offsets.length = b->values.length = 0;
    }
    output.rows = 0;
}

/* Returns the rows that were put; they stay where they are until the host has taken them. */
static wire_result *hand_on(restitch_status status) {
    if (status == RESTITCH_FAILED) {
        if (!result.is_error) restitch_panic("RESTITCH_FAILED was returned without a call of restitch_fail, which says why");
        return &result;
    }
    result = (wire_result){0};
    if (output.rows == 0) return &result;
    size_t count = restitch_transform.output_count;
    wire_column *columns = restitch_allocate(count * sizeof *columns);
    for (size_t i = 0; i < count; i++) {
        const builder *b = &output.columns[i];
        if (b->rows != output.rows) restitch_panic("a row was not ended: call restitch_end_row behind the last value");
        /* No nulls, no validity. */
        columns[i].validity = (wire_list){b->validity.data, b->nulls ? b->validity.length : 0};
        columns[i].offsets = (wire_list){b->offsets.data, b->offsets.length};
        columns[i].values = (wire_list){b->values.data, b->values.length};
    }
    result.ok.is_some = 1;
    result.ok.batch.rows = output.rows;
    result.ok.batch.columns = (wire_list){columns, count};
    return &result;
}

/* ---- What the host calls ---- */

static wire_list name_of(const char *text) { return (wire_list){text, text ? strlen(text) : 0}; }

static wire_list fields_of(const restitch_field *fields, size_t count) {
    wire_field *list = restitch_allocate(count * sizeof *list);
    for (size_t i = 0; i < count; i++) {
        bool decimal = fields[i].type == RESTITCH_DECIMAL;
        list[i] = (wire_field){name_of(fields[i].name), (uint8_t)fields[i].type, decimal ? fields[i].precision : 0, decimal ? fields[i].scale : 0, fields[i].nullable};
    }
    return (wire_list){list, count};
}

EXPORT("describe") wire_descriptor *wire_describe(void) {
    const restitch_definition *t = &restitch_transform;
    wire_descriptor *d = restitch_allocate(sizeof *d);
    wire_input *inputs = restitch_allocate(t->inputs_count * sizeof *inputs);
    for (size_t i = 0; i < t->inputs_count; i++) inputs[i] = (wire_input){name_of(t->inputs[i].name), fields_of(t->inputs[i].fields, t->inputs[i].fields_count)};
    wire_list *key = restitch_allocate(t->key_count * sizeof *key);
    for (size_t i = 0; i < t->key_count; i++) key[i] = name_of(t->key[i]);
    wire_parameter *parameters = restitch_allocate(t->parameters_count * sizeof *parameters);
    for (size_t i = 0; i < t->parameters_count; i++) {
        const restitch_parameter *p = &t->parameters[i];
        parameters[i] = (wire_parameter){name_of(p->name), p->fallback != NULL, name_of(p->fallback), name_of(p->help)};
    }
    *d = (wire_descriptor){
        .name = name_of(t->name),
        .version = name_of(t->version),
        .summary = name_of(t->summary),
        .inputs = {inputs, t->inputs_count},
        .output = fields_of(t->output, t->output_count),
        .key = {key, t->key_count},
        .parameters = {parameters, t->parameters_count},
    };
    return d;
}

EXPORT("begin")
wire_result *wire_begin(const char *partition, size_t partition_length, int64_t start_us, int64_t end_us, const char *zone, size_t zone_length, int64_t as_of_us,
                        uint64_t seed, const restitch_setting *parameters, size_t parameters_count) {
    static restitch_context context;
    context = (restitch_context){{partition, partition_length}, start_us, end_us, {zone, zone_length}, as_of_us, seed, parameters, parameters_count};
    reset_output();
    restitch_status status = restitch_transform.begin ? restitch_transform.begin(&context) : RESTITCH_OK;
    return hand_on(status);
}

EXPORT("push") wire_result *wire_push(uint32_t input, uint32_t rows, wire_column *columns, size_t columns_count) {
    const restitch_input *source = &restitch_transform.inputs[input];
    restitch_column *views = restitch_allocate(columns_count * sizeof *views);
    for (size_t i = 0; i < columns_count; i++) {
        const wire_column *c = &columns[i];
        views[i] = (restitch_column){&source->fields[i], c->validity.length ? c->validity.data : NULL, c->offsets.data, c->values.data};
    }
    restitch_batch batch = {input, rows, columns_count, views};
    reset_output();
    restitch_status status = restitch_transform.push(&batch, &output);
    free(views);
    for (size_t i = 0; i < columns_count; i++) {
        release(columns[i].validity);
        release(columns[i].offsets);
        release(columns[i].values);
    }
    release((wire_list){columns, columns_count});
    return hand_on(status);
}

EXPORT("finish") wire_result *wire_finish(void) {
    static bool finished;
    reset_output();
    if (finished || !restitch_transform.finish) return hand_on(RESTITCH_OK);
    restitch_status status = restitch_transform.finish(&output);
    /* More, but nothing now: the host would take an empty answer for the end. */
    while (status == RESTITCH_MORE && output.rows == 0) status = restitch_transform.finish(&output);
    finished = status != RESTITCH_MORE;
    return hand_on(status);
}

/* An error ends the instance, and describe has one of its own: only what comes again and again is freed. */
static void after(wire_result *r) {
    if (!r->is_error && r->ok.is_some) free((void *)r->ok.batch.columns.data);
}
AFTER("push") void wire_after_push(wire_result *r) { after(r); }
AFTER("finish") void wire_after_finish(wire_result *r) { after(r); }

/* ---- The map ---- */

struct restitch_entry {
    restitch_bytes key;
    uint32_t hash;
};

/* FNV-1a, with its high bits folded in: no seed, so that the same keys lie the same way for ever. */
static uint32_t hash_of(restitch_bytes key) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < key.length; i++) hash = (hash ^ (uint8_t)key.data[i]) * 16777619u;
    return hash ^ hash >> 15;
}

/* Returns the slot of the key, or the free one where it belongs. Slots hold index + 1, 0 is free. */
static size_t slot_of(const restitch_map *map, restitch_bytes key, uint32_t hash) {
    size_t slot = hash & (map->slots_count - 1);
    for (; map->slots[slot]; slot = (slot + 1) & (map->slots_count - 1)) {
        const struct restitch_entry *e = &map->entries[map->slots[slot] - 1];
        if (e->hash == hash && restitch_equal(e->key, key)) break;
    }
    return slot;
}

void *restitch_map_find(const restitch_map *map, restitch_bytes key) {
    if (!map->slots_count) return NULL;
    uint32_t index = map->slots[slot_of(map, key, hash_of(key))];
    return index ? restitch_map_value(map, index - 1) : NULL;
}

/* Makes room for one more, at most half of the slots in use. */
static void make_room(restitch_map *map) {
    if (map->count < map->entries_max) return;
    map->entries_max = map->entries_max ? map->entries_max * 2 : 64;
    map->entries = restitch_reallocate(map->entries, map->entries_max * sizeof *map->entries);
    map->values = restitch_reallocate(map->values, map->entries_max * map->value_size);
    free(map->slots);
    map->slots_count = map->entries_max * 2;
    map->slots = restitch_allocate(map->slots_count * sizeof *map->slots);
    for (size_t i = 0; i < map->count; i++) map->slots[slot_of(map, map->entries[i].key, map->entries[i].hash)] = (uint32_t)i + 1;
}

void *restitch_map_at(restitch_map *map, restitch_bytes key) {
    make_room(map);
    uint32_t hash = hash_of(key);
    size_t slot = slot_of(map, key, hash);
    if (map->slots[slot]) return restitch_map_value(map, map->slots[slot] - 1);
    size_t index = map->count++;
    map->slots[slot] = (uint32_t)index + 1;
    map->entries[index] = (struct restitch_entry){restitch_copy(key), hash};
    return memset(restitch_map_value(map, index), 0, map->value_size);
}

restitch_bytes restitch_map_key(const restitch_map *map, size_t index) { return map->entries[index].key; }
void *restitch_map_value(const restitch_map *map, size_t index) { return map->values + index * map->value_size; }
