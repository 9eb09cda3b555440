/* A driver of a device that is not there: launches cost the host and the device what two variables say.
 *
 * The device works off one queue on the host's clock. It has the functions that a launcher of kernels asks for.
 */
#include <stdlib.h>
#include <time.h>

static long host_nanoseconds, device_nanoseconds;
static long free_at; /* when the device has done all that was issued */

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1000000000L * time.tv_sec + time.tv_nsec;
}

static void wait_until(long instant) {
    while (now() < instant) {
    }
}

static long issue(long costs) {
    long begun = now();
    if (free_at < begun) free_at = begun;
    free_at += costs;
    return free_at;
}

int cuInit(unsigned flags) {
    (void)flags;
    host_nanoseconds = atol(getenv("SCRIPTED_HOST_NS"));
    device_nanoseconds = atol(getenv("SCRIPTED_DEVICE_NS"));
    return 0;
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra) {
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared, (void)stream, (void)arguments, (void)extra;
    wait_until(now() + host_nanoseconds);
    issue(device_nanoseconds);
    return 0;
}

int cuStreamSynchronize(void *stream) {
    (void)stream;
    wait_until(free_at);
    return 0;
}

int cuEventRecord(void *event, void *stream) {
    (void)stream;
    *(long *)event = issue(0);
    return 0;
}

int cuEventSynchronize(void *event) {
    wait_until(*(long *)event);
    return 0;
}

int cuEventElapsedTime(float *milliseconds, void *begin, void *end) {
    *milliseconds = (float)(1e-6 * (double)(*(long *)end - *(long *)begin));
    return 0;
}

int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof(long));
    return 0;
}

int cuGetErrorString(int status, const char **words) {
    (void)status;
    *words = "scripted";
    return 0;
}

int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return (void)device, *context = NULL, 0; }
int cuCtxSetCurrent(void *context) { return (void)context, 0; }
int cuModuleLoadData(void **module, const void *image) { return (void)image, *module = NULL, 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    return (void)module, (void)name, *function = NULL, 0;
}
int cuStreamCreate(void **stream, unsigned flags) { return (void)flags, *stream = NULL, 0; }
