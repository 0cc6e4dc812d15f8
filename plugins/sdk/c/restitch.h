/* The SDK for transforms in C: describe yourself once, read columns, put rows.
 * Never does any I/O: a transform has its input, its parameters and a log, and nothing else.
 * restitch.c, beside it, speaks the contract (wit/restitch-transform-1.0.0) for it; the two belong in your project.
 *
 * You define one variable, `restitch_transform`, that says what the transform is and which functions do the work:
 *
 *     begin(context)       starts a partition
 *     push(batch, output)  takes rows, and may put rows
 *     finish(output)       puts the rows that are left
 *
 * Every partition gets a fresh instance, so static variables are the state, and nothing is carried over.
 */
#ifndef RESTITCH_H
#define RESTITCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Types of columns ---- */

/* What a column holds. The comments say how C sees it. */
typedef enum {
    RESTITCH_BOOLEAN,   /* bool */
    RESTITCH_INT32,     /* int32_t */
    RESTITCH_INT64,     /* int64_t */
    RESTITCH_FLOAT32,   /* float */
    RESTITCH_FLOAT64,   /* double */
    RESTITCH_DECIMAL,   /* restitch_decimal: a count of the smallest unit */
    RESTITCH_STRING,    /* restitch_bytes, UTF-8 */
    RESTITCH_JSON,      /* restitch_bytes, JSON as UTF-8 */
    RESTITCH_BINARY,    /* restitch_bytes */
    RESTITCH_DATE,      /* int32_t: days since 1970-01-01 */
    RESTITCH_TIME,      /* int64_t: microseconds since midnight */
    RESTITCH_TIMESTAMP, /* int64_t: microseconds since 1970-01-01T00:00:00Z */
} restitch_type;

/* An exact decimal number: how many of its smallest unit. 12.34 in a decimal(18,2) is 1234. */
typedef __int128 restitch_decimal;

/* Text or bytes. Not ended by a zero byte, and may hold some. */
typedef struct {
    const char *data;
    size_t length; /* in bytes */
} restitch_bytes;

/* ---- What a transform is ---- */

/* A column. Write the fields by name: { .name = "amount", .type = RESTITCH_DECIMAL, .precision = 18, .scale = 2 }. */
typedef struct {
    const char *name;
    restitch_type type;
    bool nullable;
    uint8_t precision; /* of a decimal: digits in all, 1 to 38 */
    int8_t scale;      /* of a decimal: digits after the point */
} restitch_field;

/* Rows that are read. The first input is the windowed one; the others are lookups, pushed whole before it. */
typedef struct {
    const char *name;
    const restitch_field *fields;
    size_t fields_count;
} restitch_input;

/* A setting that a dataset may give under `params` in restitch.toml. */
typedef struct {
    const char *name;
    const char *fallback; /* its value when none is given; NULL: one has to be given */
    const char *help;     /* what it does, for people */
} restitch_parameter;

/* A parameter's name and value. */
typedef struct {
    restitch_bytes name;
    restitch_bytes value;
} restitch_setting;

/* What a transform may know about the run. Lives as long as the instance. */
typedef struct {
    restitch_bytes partition; /* its name, such as 2026-05-01 */
    int64_t start_us;         /* its start, inclusive: UTC microseconds */
    int64_t end_us;           /* its end, exclusive: UTC microseconds */
    restitch_bytes time_zone; /* the dataset's, an IANA name */
    int64_t as_of_us;         /* the only clock there is: UTC microseconds */
    uint64_t seed;            /* the only randomness there is */
    const restitch_setting *parameters;
    size_t parameters_count;
} restitch_context;

typedef struct restitch_batch restitch_batch;
typedef struct restitch_output restitch_output;

/* How a call ended. RESTITCH_FAILED comes from one of the restitch_fail functions. */
typedef enum {
    RESTITCH_OK,
    RESTITCH_MORE, /* from finish only: hand on what I put, then call me again */
    RESTITCH_FAILED,
} restitch_status;

/* A transform. Leave out what it does not have; push is needed. */
typedef struct {
    const char *name;
    const char *version; /* the same rows must for ever come out of one version */
    const char *summary; /* one sentence on what it does */
    const restitch_input *inputs;
    size_t inputs_count;
    const restitch_field *output;
    size_t output_count;
    const char *const *key; /* the output columns that identify a row inside its partition */
    size_t key_count;
    const restitch_parameter *parameters;
    size_t parameters_count;
    restitch_status (*begin)(const restitch_context *context);
    restitch_status (*push)(const restitch_batch *batch, restitch_output *output);
    restitch_status (*finish)(restitch_output *output);
} restitch_definition;

/* The one that you define. */
extern const restitch_definition restitch_transform;

/* An array and its length, for the pairs of fields above: RESTITCH_LIST(inputs, INPUTS). */
#define RESTITCH_LIST(field, array) .field = (array), .field##_count = sizeof(array) / sizeof(*(array))

/* ---- Failures, the log, memory ---- */

/* One row of the batch that was pushed cannot be taken. The message is copied. */
restitch_status restitch_fail_row(size_t row, const char *message);
/* A parameter has a value that makes no sense. */
restitch_status restitch_fail_parameters(const char *message);
/* Anything else. */
restitch_status restitch_fail(const char *message);
/* Logs the message as an error and ends the instance: for what cannot happen. */
_Noreturn void restitch_panic(const char *message);

void restitch_debug(const char *message);
void restitch_info(const char *message);
void restitch_warn(const char *message);

/* As malloc, realloc; they end the instance instead of returning NULL, and new memory is zeroed by the first. */
void *restitch_allocate(size_t size);
void *restitch_reallocate(void *memory, size_t size);
/* A copy that outlives the batch, with a zero byte behind its end. */
restitch_bytes restitch_copy(restitch_bytes bytes);
/* The bytes of a C string, without its zero byte. */
restitch_bytes restitch_text(const char *text);
bool restitch_equal(restitch_bytes a, restitch_bytes b);

/* ---- Parameters and decimals ---- */

/* Its value, the fallback if none was given. Ends the instance if the transform does not declare it. */
restitch_bytes restitch_parameter_of(const restitch_context *context, const char *name);
/* Reads a whole number, an optional sign and digits and nothing else; false if it is none or does not fit. */
bool restitch_parse_int64(restitch_bytes text, int64_t *number);
/* Adds exactly; false if the sum has more than 38 digits. */
bool restitch_decimal_add(restitch_decimal a, restitch_decimal b, restitch_decimal *sum);

/* ---- Rows that were pushed: valid until push returns ---- */

/* One column in Arrow's layout, for loops over whole columns. The host has checked it. */
typedef struct {
    const restitch_field *field;
    const uint8_t *validity; /* one bit per row, least significant first, set: a value. NULL: no nulls */
    const int32_t *offsets;  /* string, json, binary: rows + 1 offsets into values */
    const void *values;      /* as the type says; boolean: bits. Zero under a null */
} restitch_column;

struct restitch_batch {
    size_t input; /* the index of the input it belongs to */
    size_t rows;
    size_t columns_count;
    const restitch_column *columns;
};

/* Ends the instance: the column is not there, or has another type. */
_Noreturn void restitch_wrong_column(const restitch_batch *batch, size_t column, const char *wanted);

/* Returns the column if its type is one of those in `types`, a set of bits. */
static inline const restitch_column *restitch_column_of(const restitch_batch *b, size_t column, unsigned types, const char *wanted) {
    if (column >= b->columns_count || !(types >> b->columns[column].field->type & 1)) restitch_wrong_column(b, column, wanted);
    return &b->columns[column];
}

/* Whether the row has no value there. The readers below return zero, or no bytes, for it. */
static inline bool restitch_is_null(const restitch_batch *b, size_t column, size_t row) {
    const uint8_t *validity = restitch_column_of(b, column, ~0u, "a column")->validity;
    return validity && !(validity[row / 8] >> (row % 8) & 1);
}

static inline bool restitch_get_bool(const restitch_batch *b, size_t column, size_t row) {
    const uint8_t *bits = restitch_column_of(b, column, 1u << RESTITCH_BOOLEAN, "boolean")->values;
    return bits[row / 8] >> (row % 8) & 1;
}

/* Reads an int32 or a date. */
static inline int32_t restitch_get_int32(const restitch_batch *b, size_t column, size_t row) {
    return ((const int32_t *)restitch_column_of(b, column, 1u << RESTITCH_INT32 | 1u << RESTITCH_DATE, "int32 or date")->values)[row];
}

/* Reads an int64, a time or a timestamp. */
static inline int64_t restitch_get_int64(const restitch_batch *b, size_t column, size_t row) {
    unsigned types = 1u << RESTITCH_INT64 | 1u << RESTITCH_TIME | 1u << RESTITCH_TIMESTAMP;
    return ((const int64_t *)restitch_column_of(b, column, types, "int64, time or timestamp")->values)[row];
}

static inline float restitch_get_float32(const restitch_batch *b, size_t column, size_t row) {
    return ((const float *)restitch_column_of(b, column, 1u << RESTITCH_FLOAT32, "float32")->values)[row];
}

static inline double restitch_get_float64(const restitch_batch *b, size_t column, size_t row) {
    return ((const double *)restitch_column_of(b, column, 1u << RESTITCH_FLOAT64, "float64")->values)[row];
}

static inline restitch_decimal restitch_get_decimal(const restitch_batch *b, size_t column, size_t row) {
    return ((const restitch_decimal *)restitch_column_of(b, column, 1u << RESTITCH_DECIMAL, "decimal")->values)[row];
}

/* Reads a string, JSON or binary. Copy what you keep: restitch_copy. */
static inline restitch_bytes restitch_get_bytes(const restitch_batch *b, size_t column, size_t row) {
    unsigned types = 1u << RESTITCH_STRING | 1u << RESTITCH_JSON | 1u << RESTITCH_BINARY;
    const restitch_column *c = restitch_column_of(b, column, types, "string, json or binary");
    restitch_bytes bytes = {(const char *)c->values + c->offsets[row], (size_t)(c->offsets[row + 1] - c->offsets[row])};
    return bytes;
}

/* ---- Rows to return: put a value for each column in any order, then end the row ---- */

void restitch_put_null(restitch_output *output, size_t column);
void restitch_put_bool(restitch_output *output, size_t column, bool value);
void restitch_put_int32(restitch_output *output, size_t column, int32_t value);   /* also dates */
void restitch_put_int64(restitch_output *output, size_t column, int64_t value);   /* also times, timestamps */
void restitch_put_float32(restitch_output *output, size_t column, float value);
void restitch_put_float64(restitch_output *output, size_t column, double value);
void restitch_put_decimal(restitch_output *output, size_t column, restitch_decimal value);
void restitch_put_bytes(restitch_output *output, size_t column, restitch_bytes value); /* string, json, binary */
/* Ends the row. Columns that were not put become null; one that may not be null ends the instance. */
void restitch_end_row(restitch_output *output);
/* How many rows wait to be handed on. */
size_t restitch_rows(const restitch_output *output);

/* ---- A map from bytes to values of one size, in the order in which keys came ---- */

/* Start with { .value_size = sizeof(your_struct) } and zeros. */
typedef struct {
    size_t value_size;
    size_t count;
    struct restitch_entry *entries;
    char *values;
    uint32_t *slots;
    size_t entries_max;
    size_t slots_count;
} restitch_map;

/* Returns the key's value, zeroed if the key is new; the key is copied. Valid until the next call. */
void *restitch_map_at(restitch_map *map, restitch_bytes key);
/* Returns the key's value, or NULL. */
void *restitch_map_find(const restitch_map *map, restitch_bytes key);
restitch_bytes restitch_map_key(const restitch_map *map, size_t index);
void *restitch_map_value(const restitch_map *map, size_t index);

#endif
