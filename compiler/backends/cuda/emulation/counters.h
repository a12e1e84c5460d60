// Counts of what a GPU would do for a launch: requests of warps to memory, the sectors that they touch, bank conflicts.
//
// The lanes of a warp run one after another here. Their accesses are put together again by the place in the code and by
// how often the lane has been there since the warp last waited together: these form one request, as on a GPU.
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace counters {
using namespace emulation;
const unsigned SECTOR = 32, LINE = 128, WAYS = 16;

struct Event {
  const void *position;
  uint64_t address;  // offset in shared memory, or address on the device
  int16_t buffer;    // index of the argument; SHARED
  uint8_t kind;
  uint8_t size;
};
const int16_t SHARED = -1;

struct Request {
  int16_t buffer;
  uint8_t kind;
  bool is_first;  // false: the rest of a request of more sectors than one record holds
  uint8_t count;
  uint32_t sectors[32];
};

// A cache of lines with sectors, 16-way with the least recently used line replaced.
class Cache {
 public:
  void resize(uint64_t bytes) {
    sets = std::max<uint64_t>(1, bytes / (LINE * WAYS));
    lines.assign(sets * WAYS, Line{~0u, 0, 0});
    time = 0;
  }
  // Check whether a sector is there, and bring it in.
  bool touch(uint32_t sector) {
    const uint32_t tag = sector / (LINE / SECTOR), bit = 1u << sector % (LINE / SECTOR);
    Line *set = &lines[(tag ^ tag >> 7) % sets * WAYS], *oldest = set;
    for (Line *l = set; l < set + WAYS; l++) {
      if (l->tag == tag) {
        l->used = ++time;
        const bool hit = l->present & bit;
        l->present |= bit;
        return hit;
      }
      if (l->used < oldest->used) oldest = l;
    }
    *oldest = Line{tag, bit, ++time};
    return false;
  }

 private:
  struct Line {
    uint32_t tag, present;
    uint64_t used;
  };
  uint64_t sets = 1, time = 0;
  std::vector<Line> lines;
};

struct Seen {  // who touched a sector last
  int block = -1, window = -1;
};

class Recorder {
 public:
  Counts *out = nullptr;  // null: nothing is counted

  void begin(const Launch &l, unsigned threads) {
    out = l.counts;
    if (!out) return;
    memset(out, 0, sizeof *out);
    memset(l.buffer_counts, 0, sizeof(BufferCounts) * l.buffer_count);
    launch = &l;
    block = window = -1;
    bases.clear();
    uint64_t next = 0;
    for (int k = 0; k < l.buffer_count; k++) {
      uint64_t base = next;
      for (int j = 0; j < k; j++)
        if (l.buffers[j].base == l.buffers[k].base) base = bases[j];
      bases.push_back(base);
      if (base == next) next += (l.buffers[k].size + 511) / 512 * 512;
    }
    logs.assign(threads, {});
    taken.assign(threads, 0);
    queues.assign((threads + 31) / 32, {});
    for (auto *seen : {&loaded, &stored}) seen->clear();
    updates.clear();
  }
  void begin_block(int w) {
    if (!out) return;
    block++;
    window = w;
    out->blocks++;
    std::fill(taken.begin(), taken.end(), 0);
    l1.resize(launch->l1_bytes);
  }
  void add(int thread, int buffer, uint64_t offset, unsigned long size, int kind, const void *position) {
    if (!out) return;
    out->accesses++;
    if (++taken[thread] > launch->most_accesses) return;
    out->counted_accesses++;
    const uint64_t address = buffer == SHARED ? offset : bases[buffer] + offset;
    for (; size > 16; size -= 16) {
      logs[thread].push_back({position, address, (int16_t)buffer, (uint8_t)kind, 16});
    }
    logs[thread].push_back({position, address, (int16_t)buffer, (uint8_t)kind, (uint8_t)size});
  }
  void exchange(int operation) {
    if (out) out->exchanges[operation]++;
  }
  void barrier(int warps) {
    if (out) out->barriers += warps;
  }

  // Put the accesses of a warp's lanes together as requests.
  void gather(int first, int threads) {
    if (!out) return;
    const int lanes = std::min(32, threads - first);
    auto *log = &logs[first];
    if (are_alike(log, lanes)) {
      for (size_t at = 0; at < log[0].size(); at++) {
        Group g;
        for (int lane = 0; lane < lanes; lane++) g.add(log[lane][at], lane);
        count(g, first / 32);
      }
    } else {
      gather_by_position(log, lanes, first / 32);
    }
    for (int lane = 0; lane < lanes; lane++) log[lane].clear();
  }
  // Send the requests of all warps of the block to the caches, in turns.
  void drain() {
    if (!out) return;
    size_t most = 0;
    for (auto &q : queues) most = std::max(most, q.size());
    for (size_t k = 0; k < most; k++)
      for (auto &q : queues)
        if (k < q.size()) send(q[k]);
    for (auto &q : queues) q.clear();
  }
  void end() {
    if (!out) return;
    for (const auto &u : updates) {
      if (u.second.count > out->most_updates) {
        out->most_updates = u.second.count;
        out->most_updates_windows = u.second.windows;
      }
    }
  }

 private:
  struct Group {
    const Event *events[32];
    uint8_t lanes[32];
    int size = 0;
    void add(const Event &e, int lane) {
      events[size] = &e;
      lanes[size++] = lane;
    }
  };
  struct Updates {
    uint64_t count = 0;
    int windows = 0, last = -1;
  };
  const Launch *launch = nullptr;
  int block = -1, window = -1;
  std::vector<uint64_t> bases;
  std::vector<std::vector<Event>> logs;
  std::vector<uint64_t> taken;  // accesses of each thread of the block
  std::vector<std::vector<Request>> queues;
  Cache l1;
  std::unordered_map<uint64_t, Seen> loaded, stored;
  std::unordered_map<uint64_t, Updates> updates;

  // Check whether all lanes were at the same places in the same order, as in code without branches.
  static bool are_alike(const std::vector<Event> *log, int lanes) {
    for (int lane = 1; lane < lanes; lane++) {
      if (log[lane].size() != log[0].size()) return false;
      for (size_t at = 0; at < log[0].size(); at++)
        if (log[lane][at].position != log[0][at].position) return false;
    }
    return true;
  }
  void gather_by_position(const std::vector<Event> *log, int lanes, int warp) {
    std::unordered_map<uint64_t, uint32_t> index;
    std::vector<Group> groups;
    for (int lane = 0; lane < lanes; lane++) {
      std::unordered_map<const void *, uint32_t> times;
      for (const Event &e : log[lane]) {
        const uint64_t key = (uint64_t)e.position << 20 ^ times[e.position]++;
        auto found = index.emplace(key, groups.size());
        if (found.second) groups.emplace_back();
        groups[found.first->second].add(e, lane);
      }
    }
    for (const Group &g : groups) count(g, warp);
  }
  void count(const Group &g, int warp) {
    const Event &e = *g.events[0];
    out->requests++;
    out->active_lanes += g.size;
    if (e.buffer == SHARED) return count_shared(g);
    uint32_t sectors[32 * 2];
    uint64_t units[32];  // bytes that are asked for, by pieces of the size of the access
    int count = 0, pieces = 0;
    for (int n = 0; n < g.size; n++) {
      const Event *event = g.events[n];
      units[pieces++] = event->address / event->size;
      for (uint64_t s = event->address / SECTOR; s <= (event->address + event->size - 1) / SECTOR; s++) sectors[count++] = s;
    }
    std::sort(sectors, sectors + count);
    count = std::unique(sectors, sectors + count) - sectors;
    std::sort(units, units + pieces);
    const int distinct = std::unique(units, units + pieces) - units;
    BufferCounts &b = launch->buffer_counts[e.buffer];
    KindCounts &k = b.kinds[e.kind];
    k.requests++;
    k.sectors += count;
    k.ideal += (distinct * e.size + SECTOR - 1) / SECTOR;
    k.lines += lines_of(sectors, count);
    if (e.kind == ATOMIC) {
      b.updates += g.size;
      for (int n = 0; n < g.size; n++) {
        Updates &u = updates[g.events[n]->address];
        u.count++;
        if (u.last != window) u.last = window, u.windows++;
      }
    }
    for (int at = 0; at < count; at += 32) {
      Request r{e.buffer, e.kind, at == 0, (uint8_t)std::min(32, count - at), {}};
      std::copy(sectors + at, sectors + at + r.count, r.sectors);
      queues[warp].push_back(r);
    }
  }
  static int lines_of(const uint32_t *sectors, int count) {
    int out = 0;
    for (int k = 0; k < count; k++) out += k == 0 || sectors[k] / 4 != sectors[k - 1] / 4;
    return out;
  }
  // A warp's request is served in turns of 128 bytes at most, in which each of 32 banks yields one word of 4 bytes.
  void count_shared(const Group &g) {
    const unsigned size = g.events[0]->size, per_turn = size <= 4 ? 32 : 128 / size;
    out->shared_requests++;
    for (unsigned from = 0; from < 32; from += per_turn) {
      std::vector<uint64_t> words;
      for (int n = 0; n < g.size; n++) {
        if (g.lanes[n] < from || g.lanes[n] >= from + per_turn) continue;
        for (unsigned k = 0; k < size; k += 4) words.push_back((g.events[n]->address + k) / 4);
      }
      if (words.empty()) continue;
      std::sort(words.begin(), words.end());
      const bool is_update = g.events[0]->kind == ATOMIC;  // updates of one word follow each other
      if (!is_update) words.erase(std::unique(words.begin(), words.end()), words.end());
      int of_bank[32] = {0};
      for (uint64_t w : words) of_bank[w % 32]++;
      out->shared_turns += *std::max_element(of_bank, of_bank + 32);
      out->shared_ideal += 1;
    }
  }
  void send(const Request &r) {
    BufferCounts &b = launch->buffer_counts[r.buffer];
    for (int k = 0; k < r.count; k++) {
      const uint32_t sector = r.sectors[k];
      const bool reads = r.kind != WRITE;
      if (r.kind == READ && l1.touch(sector)) continue;
      (reads ? b.l2_loads : b.l2_stores)++;
      Seen &seen = (reads ? loaded : stored)[sector];
      UniqueCounts &u = reads ? b.loaded : b.stored;
      if (seen.block != block) u.by_block++;
      if (seen.window != window) u.by_window++;
      if (seen.block == -1) u.all++;
      seen.block = block, seen.window = window;
    }
  }
};
}  // namespace counters
