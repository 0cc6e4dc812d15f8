/* every-type 1.0.0: every column type there and back; the same transform exists in every language with an SDK.
 * Never changes a value; tests/languages.rs compares what the languages return, byte for byte. */
#include "restitch.h"

enum { ID, FLAG, I32, I64, F32, F64, DEC, TEXT, DOC, BYTES, DAY, AT, TS, SEEN_IN };
enum { NAME = SEEN_IN, SEEN, LABEL, START, SEED };
enum { ROWS, NAMES };
enum { NAMES_KEY, NAMES_NAME };

#define COLUMNS                                                                                              \
    {.name = "id", .type = RESTITCH_INT64}, {.name = "flag", .type = RESTITCH_BOOLEAN, .nullable = true},    \
        {.name = "i32", .type = RESTITCH_INT32, .nullable = true},                                           \
        {.name = "i64", .type = RESTITCH_INT64, .nullable = true},                                           \
        {.name = "f32", .type = RESTITCH_FLOAT32, .nullable = true},                                         \
        {.name = "f64", .type = RESTITCH_FLOAT64, .nullable = true},                                         \
        {.name = "dec", .type = RESTITCH_DECIMAL, .precision = 38, .scale = 9, .nullable = true},            \
        {.name = "text", .type = RESTITCH_STRING, .nullable = true},                                         \
        {.name = "doc", .type = RESTITCH_JSON, .nullable = true},                                            \
        {.name = "bytes", .type = RESTITCH_BINARY, .nullable = true},                                        \
        {.name = "day", .type = RESTITCH_DATE, .nullable = true},                                            \
        {.name = "at", .type = RESTITCH_TIME, .nullable = true}, {.name = "ts", .type = RESTITCH_TIMESTAMP, .nullable = true}

static const restitch_field READ[] = {COLUMNS};
static const restitch_field LOOKED_UP[] = {
    {.name = "key", .type = RESTITCH_INT64},
    {.name = "name", .type = RESTITCH_STRING, .nullable = true},
};
static const restitch_field WRITTEN[] = {
    COLUMNS,
    {.name = "name", .type = RESTITCH_STRING, .nullable = true},
    {.name = "seen", .type = RESTITCH_INT64},
    {.name = "label", .type = RESTITCH_STRING},
    {.name = "start", .type = RESTITCH_TIMESTAMP},
    {.name = "seed", .type = RESTITCH_INT64},
};
static const restitch_input INPUTS[] = {
    {.name = "rows", RESTITCH_LIST(fields, READ)},
    {.name = "names", RESTITCH_LIST(fields, LOOKED_UP)},
};
static const restitch_parameter PARAMETERS[] = {
    {.name = "label", .fallback = "none", .help = "what the column `label` says"},
    {.name = "scale", .fallback = "1", .help = "a whole number"},
};
static const char *const KEY[] = {"id"};

typedef struct {
    restitch_bytes text; /* data is NULL: the name is null */
} name;

static const restitch_context *context;
static restitch_map names = {.value_size = sizeof(name)};
static int64_t seen;
static uint64_t i64_sum;
/* The sum is `wraps` times 2^128 and `dec_sum`: exact, however the rows lie. */
static restitch_decimal dec_sum;
static int64_t wraps;
static restitch_bytes firsts;
static size_t firsts_capacity;

static restitch_status begin(const restitch_context *c) {
    int64_t scale;
    context = c;
    if (!restitch_parse_int64(restitch_parameter_of(c, "scale"), &scale)) return restitch_fail_parameters("scale: not a whole number");
    char line[128] = "begin ";
    size_t length = c->partition.length < 100 ? c->partition.length : 100;
    __builtin_memcpy(line + 6, c->partition.data, length);
    restitch_info(line);
    return RESTITCH_OK;
}

static void keep_names(const restitch_batch *b) {
    for (size_t row = 0; row < b->rows; row++) {
        int64_t key = restitch_get_int64(b, NAMES_KEY, row);
        name *n = restitch_map_at(&names, (restitch_bytes){(const char *)&key, sizeof key});
        n->text = restitch_is_null(b, NAMES_NAME, row) ? (restitch_bytes){0} : restitch_copy(restitch_get_bytes(b, NAMES_NAME, row));
    }
}

static void add_first(restitch_bytes text) {
    if (!text.length) return;
    uint8_t lead = (uint8_t)text.data[0];
    size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (firsts.length + length > firsts_capacity) {
        firsts_capacity = 2 * firsts_capacity + 64;
        firsts.data = restitch_reallocate((char *)firsts.data, firsts_capacity);
    }
    __builtin_memcpy((char *)firsts.data + firsts.length, text.data, length);
    firsts.length += length;
}

static void add(const restitch_batch *b, size_t row) {
    if (!restitch_is_null(b, I64, row)) i64_sum += (uint64_t)restitch_get_int64(b, I64, row);
    if (!restitch_is_null(b, DEC, row)) {
        restitch_decimal dec = restitch_get_decimal(b, DEC, row);
        if (__builtin_add_overflow(dec_sum, dec, &dec_sum)) wraps += dec < 0 ? -1 : 1;
    }
    if (!restitch_is_null(b, TEXT, row)) add_first(restitch_get_bytes(b, TEXT, row));
}

static void misbehave(restitch_bytes text) {
    if (restitch_equal(text, restitch_text("panic"))) restitch_panic("boom");
    if (restitch_equal(text, restitch_text("loop")))
        for (volatile int i = 0;; i++) {}
    if (restitch_equal(text, restitch_text("grow")))
        for (;;) {
            volatile char *memory = restitch_allocate(1 << 20);
            memory[0] = 1;
        }
}

static void put(const restitch_batch *b, size_t column, size_t row, restitch_output *o) {
    if (restitch_is_null(b, column, row)) {
        restitch_put_null(o, column);
        return;
    }
    switch (READ[column].type) {
    case RESTITCH_BOOLEAN: restitch_put_bool(o, column, restitch_get_bool(b, column, row)); break;
    case RESTITCH_INT32: case RESTITCH_DATE: restitch_put_int32(o, column, restitch_get_int32(b, column, row)); break;
    case RESTITCH_FLOAT32: restitch_put_float32(o, column, restitch_get_float32(b, column, row)); break;
    case RESTITCH_FLOAT64: restitch_put_float64(o, column, restitch_get_float64(b, column, row)); break;
    case RESTITCH_DECIMAL: restitch_put_decimal(o, column, restitch_get_decimal(b, column, row)); break;
    case RESTITCH_STRING: case RESTITCH_JSON: case RESTITCH_BINARY: restitch_put_bytes(o, column, restitch_get_bytes(b, column, row)); break;
    default: restitch_put_int64(o, column, restitch_get_int64(b, column, row));
    }
}

static void put_rest(restitch_output *o, int64_t count) {
    restitch_put_int64(o, SEEN, count);
    restitch_put_bytes(o, LABEL, restitch_parameter_of(context, "label"));
    restitch_put_int64(o, START, context->start_us);
    restitch_put_int64(o, SEED, (int64_t)context->seed);
    restitch_end_row(o);
}

static restitch_status push(const restitch_batch *b, restitch_output *o) {
    if (b->input == NAMES) {
        keep_names(b);
        return RESTITCH_OK;
    }
    for (size_t row = 0; row < b->rows; row++) {
        restitch_bytes text = restitch_get_bytes(b, TEXT, row);
        if (restitch_equal(text, restitch_text("refuse"))) return restitch_fail_row(row, "refused");
        misbehave(text);
        for (size_t column = 0; column < SEEN_IN; column++) put(b, column, row, o);
        int64_t id = restitch_get_int64(b, ID, row);
        const name *n = restitch_map_find(&names, (restitch_bytes){(const char *)&id, sizeof id});
        if (n && n->text.data) restitch_put_bytes(o, NAME, n->text);
        put_rest(o, seen++);
        add(b, row);
    }
    return RESTITCH_OK;
}

static restitch_status finish(restitch_output *o) {
    restitch_decimal dec;
    if (wraps != 0 || !restitch_decimal_add(dec_sum, 0, &dec)) return restitch_fail("decimal overflow");
    restitch_put_int64(o, ID, -1);
    restitch_put_int64(o, I64, (int64_t)i64_sum);
    restitch_put_decimal(o, DEC, dec);
    restitch_put_bytes(o, TEXT, firsts);
    put_rest(o, seen);
    return RESTITCH_OK;
}

const restitch_definition restitch_transform = {
    .name = "every-type",
    .version = "1.0.0",
    .summary = "Returns every row as it came, and what they sum to",
    RESTITCH_LIST(inputs, INPUTS),
    RESTITCH_LIST(output, WRITTEN),
    RESTITCH_LIST(key, KEY),
    RESTITCH_LIST(parameters, PARAMETERS),
    .begin = begin,
    .push = push,
    .finish = finish,
};
