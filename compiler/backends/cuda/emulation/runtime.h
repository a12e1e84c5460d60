// What emulated kernels and the runtime of the emulator share. Both sides are compiled from the same version of this file.
#pragma once
namespace emulation {
struct Index { unsigned x, y, z; };

// The values that the lanes of a warp brought to one operation. A lane reads them right after it continues.
enum { MOST_BYTES = 64 };
struct Exchange {
  unsigned mask;  // the lanes that take part
  alignas(16) unsigned char values[32][MOST_BYTES];
};
enum WarpOperation { SYNC_WARP, SHUFFLE, VOTE, MATCH, TENSOR, LOAD_MATRIX, ACTIVE_MASK };
enum AccessKind { READ, WRITE, ATOMIC };

struct Runtime {
  Index thread, block, block_size, grid_size;
  unsigned lane;
  char *dynamic_shared;
  // Called before each access to memory; does not return if the access is an error.
  void (*access)(const void *address, unsigned long size, int kind, const void *position);
  // Wait for all threads of the block; return how many of them have a true predicate.
  int (*barrier)(int predicate);
  // Wait for the lanes of the mask, which perform the same operation.
  const Exchange *(*exchange)(int operation, unsigned mask, const void *value, unsigned size, const void *position);
};

struct Buffer {
  char *base;
  unsigned long size;
};
// What the sampled blocks of a launch did; `Counts` of counting.py describes the fields.
struct KindCounts {
  unsigned long requests, sectors, ideal, lines;
};
struct UniqueCounts {
  unsigned long by_block, by_window, all;
};
struct BufferCounts {
  KindCounts kinds[3];  // by AccessKind
  UniqueCounts loaded, stored;
  unsigned long l2_loads, l2_stores, updates;
};
struct Counts {
  unsigned long blocks, accesses, requests, active_lanes, barriers, exchanges[7];
  unsigned long shared_requests, shared_turns, shared_ideal;
  unsigned long most_updates, most_updates_windows, counted_accesses;
};
struct Window {  // blocks that are run
  unsigned long first, count;
};

struct Launch {
  void (*kernel)(void **);
  void **arguments;
  const Buffer *buffers;  // the arrays that the kernel may access
  int buffer_count;
  char *image, *image_end;    // the library of the kernel; the runtime finds it
  char *shared, *shared_end;  // its part that holds static shared memory
  unsigned long dynamic_shared;
  Index grid, block;
  const Window *windows;  // null: all blocks are run
  int window_count;
  Counts *counts;  // null: nothing is counted
  BufferCounts *buffer_counts;
  unsigned long l1_bytes, most_accesses;
};
}  // namespace emulation
