// The program cartpole_naive of the quickstart suite, written by hand for a GPU: what compiled code is measured by.
//
// One thread per environment simulates all steps with its state in registers. The random numbers are those of
// jax.random (threefry2x32, partitionable): each step splits the key, and its second half makes four numbers for every
// environment that ends. The keys follow from each other, which takes about as long as the states do, so the last warp
// of each block makes the keys of the next steps while the others simulate. Actions are loaded some steps ahead.
#define CHUNK 64
#define AHEAD 8

__device__ __forceinline__ unsigned rotate(unsigned x, int by) { return __funnelshift_l(x, x, by); }

__device__ __forceinline__ uint2 threefry(unsigned k0, unsigned k1, unsigned x0, unsigned x1) {
  const int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const unsigned ks[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDAu};
  x0 += ks[0];
  x1 += ks[1];
#pragma unroll
  for (int i = 0; i < 5; i++) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      x0 += x1;
      x1 = rotate(x1, turns[i % 2][r]) ^ x0;
    }
    x0 += ks[(i + 1) % 3];
    x1 += ks[(i + 2) % 3] + (unsigned)(i + 1);
  }
  return make_uint2(x0, x1);
}

// A number from -0.05 to 0.05, as jax.random.uniform makes it.
__device__ __forceinline__ float reset_number(uint2 key, unsigned counter) {
  const uint2 bits = threefry(key.x, key.y, 0, counter);
  const float unit = __uint_as_float(((bits.x ^ bits.y) >> 9) | 0x3F800000u) - 1.0f;
  return fmaxf(unit * 0.1f - 0.05f, -0.05f);
}

// Sine and cosine; poles that still stand have small angles.
__device__ __forceinline__ void sine_cosine(float x, float *sine, float *cosine) {
  if (fabsf(x) <= 0.78539816f) {
    const float q = x * x;
    *sine = x + x * q * (-1.6666654611e-1f + q * (8.3321608736e-3f + q * -1.9515295891e-4f));
    *cosine = 1.0f + q * (-0.5f + q * (4.166664568298827e-2f + q * (-1.388731625493765e-3f + q * 2.443315711809948e-5f)));
  } else {
    sincosf(x, sine, cosine);
  }
}

// Make the keys of up to CHUNK steps from the current key of the simulation, which moves on; for one warp.
__device__ void make_keys(uint2 *current, uint2 *before, uint2 *keys, int count) {
  const int lane = threadIdx.x & 31;
  if (lane == 0) {
    uint2 key = *current;
    for (int t = 0; t < count; t++) {
      before[t] = key;
      key = threefry(key.x, key.y, 0, 0);
    }
    *current = key;
  }
  __syncwarp();
  for (int t = lane; t < count; t += 32) keys[t] = threefry(before[t].x, before[t].y, 0, 1);
}

// Launch with whole warps per block: 32 threads for the keys, and one thread for each of blockDim.x - 32 environments.
extern "C" __global__ void cartpole(const unsigned *__restrict__ key, const float4 *__restrict__ state,
                                    const int *__restrict__ actions, float4 *out, float *reward, int *dones, int envs,
                                    int steps) {
  __shared__ uint2 current, before[CHUNK], keys[2][CHUNK];
  const int simulating = blockDim.x - 32;
  const bool makes_keys = threadIdx.x >= simulating;
  const int env = blockIdx.x * simulating + threadIdx.x;
  const bool simulates = !makes_keys && env < envs;
  if (threadIdx.x == simulating) current = make_uint2(key[0], key[1]);
  if (makes_keys) {
    __syncwarp();
    make_keys(&current, before, keys[0], min(CHUNK, steps));
  }
  float4 s = simulates ? state[env] : make_float4(0, 0, 0, 0);
  float total = 0.0f;
  int count = 0, next[AHEAD];
#pragma unroll
  for (int j = 0; j < AHEAD; j++) next[j] = simulates && j < steps ? actions[(long long)j * envs + env] : 0;
  __syncthreads();
  for (int first = 0, half = 0; first < steps; first += CHUNK, half ^= 1) {
    const int here = min(CHUNK, steps - first);
    if (makes_keys) {
      if (first + here < steps) make_keys(&current, before, keys[half ^ 1], min(CHUNK, steps - first - here));
    } else if (simulates) {
      for (int group = 0; group < here; group += AHEAD) {
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
          const int t = group + j;
          if (t >= here) break;
          const int action = next[j];
          const int later = first + t + AHEAD;
          next[j] = later < steps ? actions[(long long)later * envs + env] : 0;
          const float force = action == 1 ? 10.0f : -10.0f;
          float sine, cosine;
          sine_cosine(s.z, &sine, &cosine);
          const float temp = (force + 0.05f * s.w * s.w * sine) * (1.0f / 1.1f);
          const float angular =
              (9.8f * sine - cosine * temp) / (0.5f * (4.0f / 3.0f - (0.1f / 1.1f) * cosine * cosine));
          const float linear = temp - (0.05f / 1.1f) * angular * cosine;
          s.x += 0.02f * s.y;
          s.y += 0.02f * linear;
          s.z += 0.02f * s.w;
          s.w += 0.02f * angular;
          if (fabsf(s.x) > 2.4f || fabsf(s.z) > 0.209439516f) {
            const uint2 k = keys[half][t];
            const unsigned counter = 4u * (unsigned)env;
            s = make_float4(reset_number(k, counter), reset_number(k, counter + 1), reset_number(k, counter + 2),
                            reset_number(k, counter + 3));
            count++;
          }
          total += 1.0f;
        }
      }
    }
    __syncthreads();
  }
  if (simulates) {
    out[env] = s;
    reward[env] = total;
    dones[env] = count;
  }
}
