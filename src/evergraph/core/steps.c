/* The slowest operations of a training step on a CPU: products with sparse rows, transposes, batches of a graph, and
   Adam; and those of a closed form: products and solutions with few columns.

   Compiled at first use by evergraph.core.compiled, once for each pair of a REAL (float, double) and an INDEX
   (int32_t, int64_t). Sums are taken in the order of the entries, whatever the width and the number of threads, so
   results are the same to the last bit. Sparse matrices are in CSR form (row v has the entries begin[v] to
   begin[v + 1]); dense ones are in row-major order. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Width and number of the processor's vector registers: wider vectors, or more of them at once, would spill to
   memory. */
#if defined(__AVX512F__)
#define BYTES 64
#define REGISTERS 32
#elif defined(__AVX__)
#define BYTES 32
#define REGISTERS 16
#elif defined(__aarch64__)
#define BYTES 16
#define REGISTERS 32
#else
#define BYTES 16
#define REGISTERS 16
#endif
#define LINE 64 /* bytes of a cache line */
#define LANES ((int)(BYTES / sizeof(REAL)))
#define HELD (REGISTERS / 2) /* vectors of sums; the other registers hold what is added to them */
#define AHEAD 4 /* rows are prefetched this many entries before they are read */
typedef REAL Lanes __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
#define INLINE static inline __attribute__((always_inline))

/* out = sum of weights[e] * dense[columns[e]] for `groups` vectors of one row, which stay in registers. One line in
   `every` of a row to be read soon is prefetched: in long runs the processor fetches the following ones by itself. */
INLINE void sum_lanes(const int groups, const int every, const INDEX *columns, const REAL *weights, int64_t count,
                      const REAL *dense, int64_t width, REAL *out) {
    Lanes sums[HELD];
#pragma GCC unroll 16
    for (int g = 0; g < groups; g++) sums[g] = (Lanes){0};
    int64_t e = 0;
    for (; e + AHEAD < count; e++) {
        const REAL *row = dense + (int64_t)columns[e] * width;
        const REAL weight = weights[e];
        const REAL *later = dense + (int64_t)columns[e + AHEAD] * width;
#pragma GCC unroll 16
        for (int g = 0; g < groups; g++) {
            if (g * BYTES % (every * LINE) == 0) __builtin_prefetch(later + g * LANES);
            sums[g] += weight * *(const Lanes *)(row + g * LANES);
        }
    }
    for (; e < count; e++) {
        const REAL *row = dense + (int64_t)columns[e] * width;
        const REAL weight = weights[e];
#pragma GCC unroll 16
        for (int g = 0; g < groups; g++) sums[g] += weight * *(const Lanes *)(row + g * LANES);
    }
#pragma GCC unroll 16
    for (int g = 0; g < groups; g++) *(Lanes *)(out + g * LANES) = sums[g];
}

INLINE void sum_row(const int every, const INDEX *columns, const REAL *weights, int64_t count, const REAL *dense,
                    int64_t width, REAL *out) {
    int64_t at = 0;
    for (; at + HELD * LANES <= width; at += HELD * LANES)
        sum_lanes(HELD, every, columns, weights, count, dense + at, width, out + at);
    for (; at + 4 * LANES <= width; at += 4 * LANES)
        sum_lanes(4, every, columns, weights, count, dense + at, width, out + at);
    for (; at + LANES <= width; at += LANES) sum_lanes(1, every, columns, weights, count, dense + at, width, out + at);
    if (at == width) return;
    for (int64_t j = at; j < width; j++) out[j] = 0;
    for (int64_t e = 0; e < count; e++)
        for (int64_t j = at; j < width; j++) out[j] += weights[e] * dense[(int64_t)columns[e] * width + j];
}

/* Rows `first` to `last` of A W, or of (rows `picked` of A) W. */
void multiply(int64_t first, int64_t last, const int64_t *picked, const INDEX *begin, const INDEX *columns,
              const REAL *values, const REAL *dense, int64_t width, REAL *out) {
    const int64_t lines = LINE / sizeof(INDEX);
    for (int64_t i = first; i < last; i++) {
        const int64_t row = picked ? picked[i] : i;
        const int64_t at = begin[row];
        if (picked && i + 1 < last) /* the next row's entries are elsewhere in memory */
            for (int64_t e = begin[picked[i + 1]]; e < begin[picked[i + 1] + 1]; e += lines) {
                __builtin_prefetch(columns + e);
                __builtin_prefetch(values + e);
            }
        sum_row(4, columns + at, values + at, begin[row + 1] - at, dense, width, out + i * width);
    }
}

/* Rows `first` to `last` of (picked rows of A)' G: begin, columns and values are those of A', and place[v] is the place
   of A's row v among those picked, or -1. `most` is the largest number of entries in a row of A'. Returns 0, or 1 if
   out of memory. */
int multiply_flipped(int64_t first, int64_t last, const int32_t *place, const INDEX *begin, const INDEX *columns,
                     const REAL *values, const REAL *dense, int64_t width, REAL *out, int64_t most) {
    INDEX *kept = malloc((most + 1) * sizeof(INDEX));
    REAL *weights = malloc((most + 1) * sizeof(REAL));
    if (kept && weights)
        for (int64_t i = first; i < last; i++) {
            int64_t count = 0;
            for (int64_t e = begin[i]; e < begin[i + 1]; e++) { /* no branch: it would be unpredictable */
                const int32_t at = place[columns[e]];
                kept[count] = at;
                weights[count] = values[e];
                count += at >= 0;
            }
            sum_row(1, kept, weights, count, dense, width, out + i * width);
        }
    const int failed = !kept || !weights;
    free(kept);
    free(weights);
    return failed;
}

/* The place of each of `rows` rows among those picked; -1 if it was not picked. */
void places(int64_t rows, int64_t count, const int64_t *picked, int32_t *place) {
    for (int64_t row = 0; row < rows; row++) place[row] = -1;
    for (int64_t i = 0; i < count; i++) place[picked[i]] = i;
}

/* A' of a matrix of `rows` rows and `num_columns` columns, by a counting sort. */
void transpose(int64_t rows, int64_t num_columns, const INDEX *begin, const INDEX *columns, const REAL *values,
               INDEX *begin_out, INDEX *columns_out, REAL *values_out) {
    memset(begin_out, 0, (num_columns + 1) * sizeof(INDEX));
    for (int64_t e = begin[0]; e < begin[rows]; e++) begin_out[columns[e] + 1]++;
    for (int64_t c = 0; c < num_columns; c++) begin_out[c + 1] += begin_out[c];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t e = begin[row]; e < begin[row + 1]; e++) {
            const INDEX to = begin_out[columns[e]]++;
            columns_out[to] = row;
            values_out[to] = values[e];
        }
    memmove(begin_out + 1, begin_out, num_columns * sizeof(INDEX));
    begin_out[0] = 0;
}

/* Rows `first` to `last` of P [max(H, 0) 1], which are one number wider than H, and of P (H' where H > 0), with H' the
   tangent `moved`, if given. */
void activate(int64_t first, int64_t last, const INDEX *begin, const INDEX *columns, const REAL *values,
              const REAL *hidden, const REAL *moved, int64_t width, REAL *out, REAL *moved_out) {
    for (int64_t i = first; i < last; i++) {
        REAL *restrict sum = out + i * (width + 1);
        REAL *restrict moved_sum = moved ? moved_out + i * width : 0;
        memset(sum, 0, (width + 1) * sizeof(REAL));
        if (moved) memset(moved_sum, 0, width * sizeof(REAL));
        for (int64_t e = begin[i]; e < begin[i + 1]; e++) {
            const REAL weight = values[e], *row = hidden + columns[e] * width;
            for (int64_t j = 0; j < width; j++) sum[j] += weight * (row[j] < 0 ? 0 : row[j]);
            sum[width] += weight;
            if (!moved) continue;
            const REAL *change = moved + columns[e] * width;
            for (int64_t j = 0; j < width; j++) moved_sum[j] += weight * (row[j] > 0 ? change[j] : 0);
        }
    }
}

/* Rows `first` to `last` of P' G where H > 0, else 0; the matrix is P'. */
void activate_back(int64_t first, int64_t last, const INDEX *begin, const INDEX *columns, const REAL *values,
                   const REAL *dense, const REAL *hidden, int64_t width, REAL *out) {
    for (int64_t i = first; i < last; i++) {
        REAL *restrict sum = out + i * width;
        const REAL *row = hidden + i * width;
        sum_row(1, columns + begin[i], values + begin[i], begin[i + 1] - begin[i], dense, width, sum);
        for (int64_t j = 0; j < width; j++) sum[j] = row[j] <= 0 ? 0 : sum[j];
    }
}

static int by_number(const void *left, const void *right) {
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* The nodes within `hops` hops of the seeds, those of each hop in order. `position` is -1 at all nodes before, and the
   place of each listed node afterwards; sizes[k] is the number of nodes within k hops, and sizes[hops + 1] that of
   repeated seeds. Returns the number of entries in the rows of all but the last hop; -1 if a seed is not a node. */
int64_t reach(int64_t num_nodes, const INDEX *begin, const INDEX *columns, const int64_t *seeds, int64_t num_seeds,
              int64_t hops, int64_t *position, int64_t *nodes, int64_t *sizes) {
    int64_t met = num_seeds, first = 0, entries = 0;
    for (int64_t i = 0; i < num_seeds; i++)
        if (seeds[i] < 0 || seeds[i] >= num_nodes) return -1;
    for (int64_t i = 0; i < num_seeds; i++) nodes[i] = seeds[i], position[seeds[i]] = i;
    sizes[0] = met;
    sizes[hops + 1] = 0;
    for (int64_t i = 0; i < num_seeds; i++) sizes[hops + 1] += position[seeds[i]] != i;
    for (int64_t hop = 0; hop < hops; hop++) {
        const int64_t last = met, before = entries;
        for (int64_t i = first; i < last; i++) {
            entries += begin[nodes[i] + 1] - begin[nodes[i]];
            for (int64_t e = begin[nodes[i]]; e < begin[nodes[i] + 1]; e++)
                if (position[columns[e]] == -1) nodes[met++] = columns[e], position[columns[e]] = -2;
        }
        if (num_nodes > 16 * (entries - before))
            qsort(nodes + last, met - last, sizeof(int64_t), by_number);
        else /* scanning all nodes is faster than sorting */
            for (int64_t v = 0, at = last; at < met; v++)
                if (position[v] == -2) nodes[at++] = v;
        for (int64_t at = last; at < met; at++) position[nodes[at]] = at;
        sizes[hop + 1] = met;
        first = last;
    }
    return entries;
}

/* The rows of the first `rows` of these nodes, with columns as positions; resets `position` to -1. */
void cut(int64_t rows, int64_t num_nodes, const int64_t *nodes, const INDEX *begin, const INDEX *columns,
         const REAL *values, int64_t *position, INDEX *begin_out, INDEX *columns_out, REAL *values_out) {
    INDEX to = begin_out[0] = 0;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t e = begin[nodes[i]]; e < begin[nodes[i] + 1]; e++, to++) {
            columns_out[to] = position[columns[e]];
            values_out[to] = values[e];
        }
        begin_out[i + 1] = to;
    }
    for (int64_t i = 0; i < num_nodes; i++) position[nodes[i]] = -1;
}

#define MOVE(gradient) \
    const REAL g = gradient, m = mean[i] + b1 * (g - mean[i]), v = b2 * square[i] + c2 * (g * g); \
    mean[i] = m; \
    square[i] = v; \
    param[i] = at - r * m / ((REAL)SQRT(v) / s + small);

/* Adam with weight decay in the gradient, like torch's: `rate` is the learning rate / (1 - beta1^t), and `root` is
   sqrt(1 - beta2^t). With an importance, the pull of a quadratic is added to the gradient, which is left unchanged. */
void adam(int64_t first, int64_t last, REAL *restrict param, const REAL *restrict grad, REAL *restrict mean,
          REAL *restrict square, const REAL *restrict anchor, const REAL *restrict importance, double rate,
          double beta1, double beta2, double root, double eps, double decay, double strength) {
    const REAL r = rate, b1 = 1 - beta1, b2 = beta2, c2 = 1 - beta2, s = root, small = eps, wd = decay, pull = strength;
    if (importance)
        for (int64_t i = first; i < last; i++) {
            const REAL at = param[i];
            MOVE(grad[i] + pull * importance[i] * (at - anchor[i]) + wd * at)
        }
    else
        for (int64_t i = first; i < last; i++) {
            const REAL at = param[i];
            MOVE(grad[i] + wd * at)
        }
}

/* grad += strength * importance * (param - anchor): the pull of a quadratic. */
void pull(int64_t first, int64_t last, REAL *restrict grad, const REAL *restrict param, const REAL *restrict anchor,
          const REAL *restrict importance, double strength) {
    const REAL s = strength;
    for (int64_t i = first; i < last; i++) grad[i] += s * importance[i] * (param[i] - anchor[i]);
}

/* Products with few columns: `groups` vectors of each of `high` rows at once stay in registers. */
#define HIGH(groups) (HELD >= 8 * (groups) ? 8 : HELD >= 4 * (groups) ? 4 : HELD >= 2 * (groups) ? 2 : 1)
#define MOST (4 * LINE / BYTES) /* groups: four lines of a row */
#define BLOCK 65536             /* bytes of columns that stay in a core's cache */

/* An entry of a matrix of floats, if it is `narrow`, or of REALs. */
INLINE REAL entry(const int narrow, const void *matrix, int64_t place) {
    return narrow ? (REAL)((const float *)matrix)[place] : ((const REAL *)matrix)[place];
}

/* sums[r] += sign * sum of matrix[r, j] * columns[j] over j < count; row r of the matrix begins at first + r * step */
INLINE void add_few(const int groups, const int high, const int narrow, const REAL sign, int64_t count,
                    const void *matrix, int64_t first, int64_t step, const REAL *columns, Lanes *sums) {
    const int64_t width = groups * LANES;
    for (int64_t j = 0; j < count; j++) {
        Lanes row[MOST];
#pragma GCC unroll 16
        for (int g = 0; g < groups; g++) row[g] = *(const Lanes *)(columns + j * width + g * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < high; r++) {
            const REAL weight = sign * entry(narrow, matrix, first + r * step + j);
#pragma GCC unroll 16
            for (int g = 0; g < groups; g++) sums[r * groups + g] += weight * row[g];
        }
    }
}

/* `high` rows of out += A X; they are summed apart and then added, which is more accurate than one long sum. */
INLINE void times_rows(const int groups, const int high, const int narrow, int64_t count, const void *matrix,
                       int64_t first, int64_t step, const REAL *columns, REAL *out) {
    Lanes sums[HELD + MOST];
#pragma GCC unroll 16
    for (int k = 0; k < high * groups; k++) sums[k] = (Lanes){0};
    add_few(groups, high, narrow, 1, count, matrix, first, step, columns, sums);
#pragma GCC unroll 16
    for (int k = 0; k < high * groups; k++) *(Lanes *)(out + k * LANES) += sums[k];
}

/* out[j] += sum of matrix[r, j] * rows[r] over `high` rows: A' Y for some rows of A. */
INLINE void flipped_rows(const int groups, const int high, const int narrow, int64_t count, const void *matrix,
                         int64_t first, int64_t step, const REAL *rows, REAL *out) {
    const int64_t width = groups * LANES;
    Lanes held[HELD + MOST];
#pragma GCC unroll 16
    for (int k = 0; k < high * groups; k++) held[k] = *(const Lanes *)(rows + k * LANES);
    for (int64_t j = 0; j < count; j++) {
#pragma GCC unroll 16
        for (int g = 0; g < groups; g++) {
            Lanes sum = *(Lanes *)(out + j * width + g * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < high; r++) sum += entry(narrow, matrix, first + r * step + j) * held[r * groups + g];
            *(Lanes *)(out + j * width + g * LANES) = sum;
        }
    }
}

INLINE void times_few(const int groups, const int narrow, int64_t rows, int64_t count, const void *matrix,
                      int64_t step, const REAL *columns, REAL *out, const REAL *others, REAL *flipped) {
    const int64_t width = groups * LANES, block = BLOCK / (groups * BYTES);
    const int high = HIGH(groups);
    for (int64_t j = 0; j < count; j += block) {
        const int64_t some = count - j < block ? count - j : block;
        const REAL *above = columns + j * width;
        REAL *below = flipped ? flipped + j * width : 0;
        int64_t i = 0;
        for (; i + high <= rows; i += high) { /* a tile is small enough to stay in the cache for its second use */
            times_rows(groups, high, narrow, some, matrix, i * step + j, step, above, out + i * width);
            if (below) flipped_rows(groups, high, narrow, some, matrix, i * step + j, step, others + i * width, below);
        }
        for (; i < rows; i++) {
            times_rows(groups, 1, narrow, some, matrix, i * step + j, step, above, out + i * width);
            if (below) flipped_rows(groups, 1, narrow, some, matrix, i * step + j, step, others + i * width, below);
        }
    }
}

#define TIMES(lines, narrow) \
    times_few((lines) * LINE / BYTES, narrow, rows, count, matrix, step, columns, out, others, flipped)

/* out += A X and, unless it is null, flipped += A' Y with Y = others, reading A once. A is of floats if it is narrow.
   All of X, Y, out and flipped have one to four cache lines of numbers per row. */
void times(int64_t lines, int64_t rows, int64_t count, int64_t narrow, const void *matrix, int64_t step,
           const REAL *columns, REAL *out, const REAL *others, REAL *flipped) {
    if (lines == 1) narrow ? TIMES(1, 1) : TIMES(1, 0);
    if (lines == 2) narrow ? TIMES(2, 1) : TIMES(2, 0);
    if (lines == 3) narrow ? TIMES(3, 1) : TIMES(3, 0);
    if (lines == 4) narrow ? TIMES(4, 1) : TIMES(4, 0);
}

/* Overwrite rows i to i + high of B with those of the solution of L Y = B, from the rows before. */
INLINE void forward_few(const int groups, const int high, int64_t i, const REAL *factor, int64_t step, REAL *columns) {
    const int64_t width = groups * LANES;
    Lanes sums[HELD + MOST];
#pragma GCC unroll 16
    for (int k = 0; k < high * groups; k++) sums[k] = *(Lanes *)(columns + i * width + k * LANES);
    add_few(groups, high, 0, -1, i, factor, i * step, step, columns, sums);
    for (int r = 0; r < high; r++) {
        const REAL *row = factor + (i + r) * step + i;
        for (int s = 0; s < r; s++)
            for (int g = 0; g < groups; g++) sums[r * groups + g] -= row[s] * sums[s * groups + g];
        for (int g = 0; g < groups; g++) sums[r * groups + g] /= row[r];
    }
#pragma GCC unroll 16
    for (int k = 0; k < high * groups; k++) *(Lanes *)(columns + i * width + k * LANES) = sums[k];
}

/* Overwrite rows i to i + high of Y with those of the solution of L' X = Y, and subtract what they contribute to the
   rows before. */
INLINE void back_few(const int groups, const int high, int64_t i, const REAL *factor, int64_t step, REAL *columns) {
    const int64_t width = groups * LANES;
    Lanes found[HELD + MOST];
#pragma GCC unroll 16
    for (int k = 0; k < high * groups; k++) found[k] = *(Lanes *)(columns + i * width + k * LANES);
    for (int r = high - 1; r >= 0; r--) {
        const REAL *row = factor + (i + r) * step + i;
        for (int g = 0; g < groups; g++) found[r * groups + g] /= row[r];
        for (int s = 0; s < r; s++)
            for (int g = 0; g < groups; g++) found[s * groups + g] -= row[s] * found[r * groups + g];
    }
#pragma GCC unroll 16
    for (int k = 0; k < high * groups; k++) *(Lanes *)(columns + i * width + k * LANES) = found[k];
    const REAL *rows = factor + i * step;
    for (int64_t j = 0; j < i; j++) {
#pragma GCC unroll 16
        for (int g = 0; g < groups; g++) {
            Lanes left = *(Lanes *)(columns + j * width + g * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < high; r++) left -= rows[r * step + j] * found[r * groups + g];
            *(Lanes *)(columns + j * width + g * LANES) = left;
        }
    }
}

INLINE void solve_few(const int groups, int64_t size, const REAL *factor, int64_t step, REAL *columns) {
    const int high = HIGH(groups);
    const int64_t even = size - size % high;
    for (int64_t i = 0; i < even; i += high) forward_few(groups, high, i, factor, step, columns);
    for (int64_t i = even; i < size; i++) forward_few(groups, 1, i, factor, step, columns);
    for (int64_t i = size - 1; i >= even; i--) back_few(groups, 1, i, factor, step, columns);
    for (int64_t i = even - high; i >= 0; i -= high) back_few(groups, high, i, factor, step, columns);
}

/* Overwrite B, which has one to four cache lines of numbers per row, with (L L')^-1 B. */
void solve(int64_t lines, int64_t size, const REAL *factor, int64_t step, REAL *columns) {
    if (lines == 1) solve_few(1 * LINE / BYTES, size, factor, step, columns);
    if (lines == 2) solve_few(2 * LINE / BYTES, size, factor, step, columns);
    if (lines == 3) solve_few(3 * LINE / BYTES, size, factor, step, columns);
    if (lines == 4) solve_few(4 * LINE / BYTES, size, factor, step, columns);
}
