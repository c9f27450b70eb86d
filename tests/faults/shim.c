/* Makes the N-th system call on a directory fail. Load it with LD_PRELOAD.
 *
 * FAULT_PREFIX  count calls whose path, or whose descriptor's path, starts with this
 * FAULT_AT      N, from 1
 * FAULT_ERRNO   the errno of the failed call
 * FAULT_STICKY  if 1, all calls from the N-th on fail, and only calls that create or write count: a full disk
 * FAULT_ONLY    if not empty, count only calls of this name
 * FAULT_LOG     a file for a line per failed call: its name and path
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { READS, WRITES, REMOVES };

static atomic_long n_calls;

static void path_of(int fd, const char *name, char *out) {
    char link[64];
    ssize_t n = 0;
    if (name && (name[0] == '/' || fd == AT_FDCWD)) {
        snprintf(out, PATH_MAX, "%s", name);
        return;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, out, PATH_MAX / 2);
    out[n > 0 ? n : 0] = 0;
    if (name) snprintf(out + strlen(out), PATH_MAX / 2, "/%s", name);
}

static void note(const char *call, const char *path) {
    const char *log = getenv("FAULT_LOG");
    char line[PATH_MAX + 64];
    int n = snprintf(line, sizeof line, "%s %s\n", call, path);
    int fd = log ? (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (fd < 0) return;
    syscall(SYS_write, fd, line, (size_t)n);
    syscall(SYS_close, fd);
}

/* Returns whether this call must fail, and sets errno if so. */
static int fails(const char *call, enum kind kind, int fd, const char *name) {
    const char *prefix = getenv("FAULT_PREFIX"), *at = getenv("FAULT_AT"), *sticky = getenv("FAULT_STICKY");
    const char *only = getenv("FAULT_ONLY");
    int saved = errno, is_sticky = sticky && sticky[0] == '1', is_named = only && only[0];
    char path[PATH_MAX * 2];
    long n;
    if (!prefix || !at || (is_named ? strcmp(call, only) != 0 : is_sticky && kind != WRITES)) return 0;
    path_of(fd, name, path);
    errno = saved;
    if (strncmp(path, prefix, strlen(prefix)) != 0) return 0;
    n = atomic_fetch_add(&n_calls, 1) + 1;
    if (is_sticky ? n < atol(at) : n != atol(at)) return 0;
    note(call, path);
    errno = atoi(getenv("FAULT_ERRNO"));
    return 1;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static int mode_of(int flags, va_list args) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, int) : 0;
}

/* remove_dir_all opens the directories that it empties with O_NOFOLLOW. */
static const char *open_name(int flags) { return flags & O_NOFOLLOW ? "open-to-remove" : "open"; }
static enum kind open_kind(int flags) {
    return flags & O_NOFOLLOW ? REMOVES : flags & (O_WRONLY | O_RDWR | O_CREAT) ? WRITES : READS;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, name, const char *, int, ...); \
        va_list args; \
        va_start(args, flags); \
        int mode = mode_of(flags, args); \
        va_end(args); \
        return fails(open_name(flags), open_kind(flags), AT_FDCWD, path) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int fd, const char *path, int flags, ...) { \
        REAL(int, name, int, const char *, int, ...); \
        va_list args; \
        va_start(args, flags); \
        int mode = mode_of(flags, args); \
        va_end(args); \
        return fails(open_name(flags), open_kind(flags), fd, path) ? -1 : real(fd, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

#define ON_FD(type, name, kind, params, args, ...) \
    type name params { \
        REAL(type, name, __VA_ARGS__); \
        return fails(#name, kind, fd, NULL) ? -1 : real args; \
    }
ON_FD(ssize_t, read, READS, (int fd, void *b, size_t n), (fd, b, n), int, void *, size_t)
ON_FD(ssize_t, pread, READS, (int fd, void *b, size_t n, off_t o), (fd, b, n, o), int, void *, size_t, off_t)
ON_FD(ssize_t, pread64, READS, (int fd, void *b, size_t n, off64_t o), (fd, b, n, o), int, void *, size_t, off64_t)
ON_FD(ssize_t, write, WRITES, (int fd, const void *b, size_t n), (fd, b, n), int, const void *, size_t)
ON_FD(ssize_t, writev, WRITES, (int fd, const struct iovec *v, int n), (fd, v, n), int, const struct iovec *, int)
ON_FD(ssize_t, pwrite, WRITES, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o), int, const void *, size_t, off_t)
ON_FD(ssize_t, pwrite64, WRITES, (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o), int, const void *, size_t,
      off64_t)
ON_FD(int, fsync, WRITES, (int fd), (fd), int)
ON_FD(int, fdatasync, WRITES, (int fd), (fd), int)
ON_FD(int, fallocate, WRITES, (int fd, int m, off_t o, off_t n), (fd, m, o, n), int, int, off_t, off_t)
ON_FD(int, fallocate64, WRITES, (int fd, int m, off64_t o, off64_t n), (fd, m, o, n), int, int, off64_t, off64_t)
ON_FD(int, ftruncate, WRITES, (int fd, off_t n), (fd, n), int, off_t)
ON_FD(int, ftruncate64, WRITES, (int fd, off64_t n), (fd, n), int, off64_t)
ON_FD(int, flock, READS, (int fd, int how), (fd, how), int, int)

/* A run inspects hundreds of paths: these calls count only if FAULT_ONLY names them. */
static int look_fails(int fd, const char *path) {
    const char *only = getenv("FAULT_ONLY");
    return only && strcmp(only, "stat") == 0 && path && fails("stat", READS, fd, path);
}
int statx(int fd, const char *restrict path, int flags, unsigned mask, struct statx *restrict out) {
    REAL(int, statx, int, const char *, int, unsigned, struct statx *);
    return look_fails(fd, path) ? -1 : real(fd, path, flags, mask, out);
}
char *realpath(const char *restrict path, char *restrict out) {
    REAL(char *, realpath, const char *, char *);
    return look_fails(AT_FDCWD, path) ? NULL : real(path, out);
}

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    return fails("rename", WRITES, AT_FDCWD, to) ? -1 : real(from, to);
}
int renameat(int a, const char *from, int b, const char *to) {
    REAL(int, renameat, int, const char *, int, const char *);
    return fails("rename", WRITES, b, to) ? -1 : real(a, from, b, to);
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    REAL(int, renameat2, int, const char *, int, const char *, unsigned);
    return fails("rename", WRITES, b, to) ? -1 : real(a, from, b, to, flags);
}
int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    return fails("mkdir", WRITES, AT_FDCWD, path) ? -1 : real(path, mode);
}
int unlink(const char *path) {
    REAL(int, unlink, const char *);
    return fails("unlink", REMOVES, AT_FDCWD, path) ? -1 : real(path);
}
int unlinkat(int fd, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    return fails("unlink", REMOVES, fd, path) ? -1 : real(fd, path, flags);
}
int rmdir(const char *path) {
    REAL(int, rmdir, const char *);
    return fails("unlink", REMOVES, AT_FDCWD, path) ? -1 : real(path);
}
