/* Calls that run on the threads of an OpenMP library which other code in the process uses, such as PyTorch.

   The threads of GNU OpenMP spin for some milliseconds after each parallel region. Workers of our own would compete with
   them for the cores, so that a program that runs between two ops of PyTorch would have one core less. Instead, the first
   parallel loop of such a call starts a parallel region, whose other members become workers of a pool that exists for this
   call: guests. At the end of the call they return to OpenMP, where the next op of PyTorch finds them awake. Jobs, chunks
   and results are those of a pool of our own with as many threads.

   Calls that cannot have guests use our own threads: where OpenMP has another number of threads, inside of a parallel
   region, while another thread has guests, and in a forked child, where OpenMP would wait for threads that only the parent
   has. On a busy machine, a region waits for members that do not run at the moment, where our own pool does without them.
   After a region that had to wait, a number of calls use our own threads, and more of them each time.

   This file follows pool.c in one translation unit. */

/* Nanoseconds that a guest spins between jobs; in OpenMP it would spin longer. */
#define GUEST_SPIN_NANOSECONDS 2000000
/* Nanoseconds that the start and the end of a region take together if a member is late; waking one takes 50000. */
#define LATE_NANOSECONDS 200000
#define MOST_CALLS_WITHOUT_GUESTS 256

/* The functions of GNU OpenMP; all null if no threads are shared. */
static struct {
  void (*start)(void (*)(void *), void *, unsigned); /* GOMP_parallel_start */
  void (*end)(void);                                 /* GOMP_parallel_end */
  int (*max_threads)(void);
  int (*num_threads)(void);
  int (*thread_num)(void);
  int (*in_parallel)(void);
} openmp;

static struct pool visitors = {.busy = ATOMIC_FLAG_INIT};
static atomic_flag taken = ATOMIC_FLAG_INIT; /* whether a thread has guests */
static _Thread_local struct pool *guests;    /* `visitors` in a thread that has guests or is one, else null */
static uint32_t offers_before;               /* of `visitors` when the guests came */
static int64_t time_waited;                  /* nanoseconds that the start of the region took */
static _Atomic int calls_without_guests;     /* how many of the next calls have none */
static int next_calls_without_guests = 1;

/* Share the threads of an OpenMP library, given by the addresses of the functions above, or end that if it is null.
   The caller makes sure that no program runs. */
EXPORT void hlogym_share_openmp(void *const *functions) {
  if (functions)
    memcpy(&openmp, functions, sizeof openmp);
  else
    memset(&openmp, 0, sizeof openmp);
}

static void be_guest(void *unused) {
  (void)unused;
  is_worker = 1;
  guests = &visitors;
  work_on_jobs(&visitors, openmp.thread_num(), offers_before, GUEST_SPIN_NANOSECONDS);
  guests = 0;
  is_worker = 0;
}

/* Decide from the time that a region has waited how many of the next calls do without. */
static void judge_region(int64_t nanoseconds) {
  if (nanoseconds <= LATE_NANOSECONDS) {
    if (next_calls_without_guests > 1) next_calls_without_guests /= 2;
    return;
  }
  atomic_store(&calls_without_guests, next_calls_without_guests);
  if (next_calls_without_guests < MOST_CALLS_WITHOUT_GUESTS) next_calls_without_guests *= 2;
}

/* End the parallel region of the calling thread. */
static void dismiss_guests(void) {
  if (!guests) return; /* in a child that was forked meanwhile */
  atomic_store(&visitors.closed, 1);
  atomic_fetch_add(&visitors.offers, 1);
  if (atomic_load(&visitors.sleepers)) futex_wake(&visitors.offers, INT_MAX);
  const int64_t start = now(CLOCK_MONOTONIC);
  openmp.end();
  judge_region(time_waited + now(CLOCK_MONOTONIC) - start);
  guests = 0;
  atomic_flag_clear(&taken);
}

/* Start a parallel region for the running call; return whether it has all the guests that it wants. */
static int invite_guests(void) {
  if (!openmp.start || wanted_threads == 1 || openmp.max_threads() != wanted_threads || openmp.in_parallel()) return 0;
  if (atomic_load(&calls_without_guests) > 0) {
    atomic_fetch_sub(&calls_without_guests, 1);
    return 0;
  }
  if (atomic_flag_test_and_set(&taken)) return 0;
  offers_before = atomic_load(&visitors.offers);
  atomic_store(&visitors.closed, 0);
  const int64_t start = now(CLOCK_MONOTONIC);
  openmp.start(be_guest, 0, (unsigned)wanted_threads);
  time_waited = now(CLOCK_MONOTONIC) - start;
  guests = &visitors;
  visitors.workers = openmp.num_threads() - 1;
  if (visitors.workers == wanted_threads - 1) return 1;
  dismiss_guests(); /* OpenMP has another limit */
  return 0;
}

/* Return the pool for a loop of the running call: that of its guests, or our own. */
static struct pool *pool_of_call(void) {
  if (guests) return guests;
  if (!current || !current->shares || in_task) return &own;
  if (invite_guests())
    current->has_guests = 1;
  else
    current->shares = 0; /* for the rest of the call */
  return guests ? guests : &own;
}

/* Only the forking thread exists in a forked child, so the child starts with an empty pool. */
static void after_fork_in_child(void) {
  empty_pool(&own);
  empty_pool(&visitors);
  hlogym_share_openmp(0);
  guests = 0;
  atomic_flag_clear(&taken);
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(0, 0, after_fork_in_child); }
