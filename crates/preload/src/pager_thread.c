/*
 * How deep this thread is inside the pager.
 *
 * malloc reads it first thing. Rust's thread_local! in a shared object goes through __tls_get_addr,
 * which after a dlopen may itself call malloc: endless recursion. The initial-exec model is a plain
 * load from the thread's static block, which a preloaded object always has.
 */
static __thread int depth __attribute__((tls_model("initial-exec")));

int overspill_pager_depth(void) { return depth; }

void overspill_pager_enter(void) { depth++; }

void overspill_pager_leave(void) { depth--; }

/*
 * Whether this thread is of the pager's process, where its descriptors are. A program thread that works
 * for the pager is not.
 */
static __thread int at_home __attribute__((tls_model("initial-exec")));

int overspill_pager_is_home(void) { return at_home; }

void overspill_pager_at_home(void) { at_home = 1; }

/* What a thread that is about to fork has ready for its child. */
static __thread void *ticket __attribute__((tls_model("initial-exec")));

void *overspill_fork_ticket(void *next) {
    void *before = ticket;
    ticket = next;
    return before;
}

/* The state of a thread whose system calls are caught; read by the code that they return through. */
__attribute__((visibility("hidden"), tls_model("initial-exec"))) __thread void *overspill_caught;

void *overspill_caught_get(void) { return overspill_caught; }

void overspill_caught_set(void *state) { overspill_caught = state; }
