/* The program cartpole_naive of the quickstart suite, written by hand: the figure that compiled code is measured by.
 *
 * Each thread takes groups of environments and simulates a group over all steps, so that its state stays in registers.
 * The random numbers are those of jax.random (threefry2x32, partitionable): two new keys per step, of which the second
 * makes four numbers per environment. They are computed only for vectors in which some environment is done.
 *
 * gcc -O3 -march=native -fopenmp -shared -fPIC cartpole.c -o cartpole.so
 */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif
#ifndef VECTORS
#define VECTORS 4 /* vectors per group: they hide the latency of a step */
#endif

typedef float F __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef uint32_t U __attribute__((vector_size(4 * LANES)));
typedef I LoadI __attribute__((aligned(4)));

static inline F splat(float x) { return x - (F){}; }
static inline F where(I mask, F yes, F no) { return (F)((mask & (I)yes) | (~mask & (I)no)); }
static inline U rotate(U x, int by) { return (x << by) | (x >> (32 - by)); }

static inline int any(I mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    int found = 0;
    for (int i = 0; i < LANES; i++) found |= mask[i];
    return found != 0;
#endif
}

/* ---- threefry2x32 with 20 rounds */

#define ROUNDS(T, ROTATE)                                              \
    static const int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}}; \
    const uint32_t ks[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDAu};            \
    x0 += ks[0];                                                       \
    x1 += ks[1];                                                       \
    _Pragma("GCC unroll 5") for (int i = 0; i < 5; i++) {              \
        _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++) {          \
            x0 += x1;                                                  \
            x1 = ROTATE(x1, turns[i % 2][r]) ^ x0;                     \
        }                                                              \
        x0 += ks[(i + 1) % 3];                                         \
        x1 += ks[(i + 2) % 3] + (uint32_t)(i + 1);                     \
    }

static inline uint32_t rotate1(uint32_t x, int by) { return (x << by) | (x >> (32 - by)); }

static void threefry(uint32_t k0, uint32_t k1, uint32_t x0, uint32_t x1, uint32_t out[2]) {
    ROUNDS(uint32_t, rotate1)
    out[0] = x0;
    out[1] = x1;
}

static inline U random_bits(uint32_t k0, uint32_t k1, U x1) {
    U x0 = {};
    ROUNDS(U, rotate)
    return x0 ^ x1;
}

/* A number from -0.05 to 0.05, as jax.random.uniform makes it. */
static inline F reset_number(uint32_t k0, uint32_t k1, U counter) {
    const F low = splat(-0.05f);
    F unit = (F)((random_bits(k0, k1, counter) >> 9) | 0x3F800000u) - 1.0f;
    F found = unit * 0.1f + low;
    return where(found > low, found, low);
}

/* ---- sine and cosine, reduced to [-pi/4, pi/4] in three parts */

static inline void sine_cosine(F x, F *sine, F *cosine) {
    F shifted = x * 0.636619772f + 12582912.0f;
    I quadrant = (I)shifted;
    F n = shifted - 12582912.0f;
    F r = x - n * 1.57079601e+00f;
    r = r - n * 3.13916473e-07f;
    r = r - n * 5.39030253e-15f;
    F q = r * r;
    F s = r + r * q * (-1.6666654611e-1f + q * (8.3321608736e-3f + q * -1.9515295891e-4f));
    F c = 1.0f + q * (-0.5f + q * (4.166664568298827e-2f + q * (-1.388731625493765e-3f + q * 2.443315711809948e-5f)));
    I swapped = (quadrant & 1) != 0;
    I first = ((quadrant & 2) << 30);
    I second = (((quadrant + 1) & 2) << 30);
    *sine = (F)((I)where(swapped, c, s) ^ first);
    *cosine = (F)((I)where(swapped, s, c) ^ second);
}

/* ---- simulation */

static void simulate(long group, long envs, long steps, const uint32_t (*keys)[2], const float *state,
                     const int32_t *actions, float *out, float *reward, int32_t *dones) {
    F x[VECTORS], xd[VECTORS], th[VECTORS], thd[VECTORS], total[VECTORS];
    I count[VECTORS];
    U counter[VECTORS];
    const long base = group * VECTORS * LANES;
    for (int v = 0; v < VECTORS; v++) {
        for (int l = 0; l < LANES; l++) {
            const float *s = state + 4 * (base + v * LANES + l);
            x[v][l] = s[0], xd[v][l] = s[1], th[v][l] = s[2], thd[v][l] = s[3];
            counter[v][l] = (uint32_t)(4 * (base + v * LANES + l));
        }
        total[v] = splat(0);
        count[v] = (I){};
    }
    for (long t = 0; t < steps; t++) {
        const int32_t *row = actions + t * envs + base;
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            __builtin_prefetch(row + 8 * envs + v * LANES);
            I action = *(const LoadI *)(row + v * LANES);
            F force = where(action == 1, splat(10.0f), splat(-10.0f));
            F sine, cosine;
            sine_cosine(th[v], &sine, &cosine);
            F temp = (force + 0.05f * thd[v] * thd[v] * sine) * (1.0f / 1.1f);
            F th_acc =
                (9.8f * sine - cosine * temp) / (0.5f * (4.0f / 3.0f - (0.1f / 1.1f) * cosine * cosine));
            F x_acc = temp - (0.05f / 1.1f) * th_acc * cosine;
            x[v] += 0.02f * xd[v];
            xd[v] += 0.02f * x_acc;
            th[v] += 0.02f * thd[v];
            thd[v] += 0.02f * th_acc;
            I done = ((x[v] > 2.4f) | (x[v] < -2.4f)) | ((th[v] > 0.209439516f) | (th[v] < -0.209439516f));
            if (any(done)) {
                const uint32_t k0 = keys[t][0], k1 = keys[t][1];
                x[v] = where(done, reset_number(k0, k1, counter[v]), x[v]);
                xd[v] = where(done, reset_number(k0, k1, counter[v] + 1), xd[v]);
                th[v] = where(done, reset_number(k0, k1, counter[v] + 2), th[v]);
                thd[v] = where(done, reset_number(k0, k1, counter[v] + 3), thd[v]);
                count[v] -= done;
            }
            total[v] += 1.0f;
        }
    }
    for (int v = 0; v < VECTORS; v++)
        for (int l = 0; l < LANES; l++) {
            const long e = base + v * LANES + l;
            out[4 * e] = x[v][l], out[4 * e + 1] = xd[v][l], out[4 * e + 2] = th[v][l], out[4 * e + 3] = thd[v][l];
            reward[e] = total[v][l], dones[e] = count[v][l];
        }
}

/* Simulate; returns 0, or 1 if the number of environments is no multiple of a group or there is no memory. */
int cartpole(const uint32_t *key, const float *state, const int32_t *actions, long envs, long steps, int threads,
             float *out, float *reward, int32_t *dones) {
    const long group = VECTORS * LANES;
    uint32_t(*keys)[2] = malloc((size_t)(steps > 0 ? steps : 1) * sizeof *keys);
    if (keys == NULL || envs % group != 0) {
        free(keys);
        return 1;
    }
    uint32_t current[2] = {key[0], key[1]};
    for (long t = 0; t < steps; t++) {
        uint32_t next[2];
        threefry(current[0], current[1], 0, 0, next);
        threefry(current[0], current[1], 0, 1, keys[t]);
        current[0] = next[0], current[1] = next[1];
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long g = 0; g < envs / group; g++)
        simulate(g, envs, steps, (const uint32_t(*)[2])keys, state, actions, out, reward, dones);
    free(keys);
    return 0;
}
