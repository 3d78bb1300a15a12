/* Shifts or freezes the wall clock of one process: LD_PRELOAD it with SKEWED_CLOCK naming a file of two
 * 64-bit integers: nanoseconds to add, and, when not 0, the instant at which the clock stands still.
 * Other processes may change the file at any time. Monotonic clocks are left alone.
 *
 * Asks the kernel by system call, so that nothing here allocates or resolves symbols: allocators ask for the
 * time before they are ready.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL

static volatile int64_t *skew;

__attribute__((constructor)) static void open_skew(void) {
    const char *path = getenv("SKEWED_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(NULL, 16, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED) skew = mapped;
}

static int64_t wall_ns(void) {
    struct timespec real;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    int64_t now = real.tv_sec * NS + real.tv_nsec;
    if (!skew) return now;
    return skew[1] ? skew[1] : now + skew[0];
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return (int)syscall(SYS_clock_gettime, clock, out);
    int64_t now = wall_ns();
    out->tv_sec = now / NS;
    out->tv_nsec = now % NS;
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    int64_t now = wall_ns();
    out->tv_sec = now / NS;
    out->tv_usec = now % NS / 1000;
    return 0;
}

time_t time(time_t *out) {
    time_t now = (time_t)(wall_ns() / NS);
    if (out) *out = now;
    return now;
}
