/* Launches an empty kernel in a loop that costs next to nothing, through the driver's own interface.
 *
 * The driver is found at run time, so that this needs neither CUDA's headers nor its libraries to be built. What is
 * called goes through a pointer: with the pointer of a function that does nothing, the same loop tells its own cost.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int Status; /* 0 is success everywhere in the driver */
typedef Status LaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments,
                            void **extra);

enum { NON_BLOCKING_STREAM = 1 };

struct launcher {
    LaunchKernel *launch;
    Status (*synchronize)(void *stream);
    Status (*record)(void *event, void *stream);
    Status (*wait)(void *event);
    Status (*elapsed)(float *milliseconds, void *begin, void *end);
    Status (*explain)(Status status, const char **words);
    void *function;
    void *stream;
    void *begin;
    void *end;
};

static Status launch_nothing(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments,
                             void **extra) {
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared, (void)stream, (void)arguments, (void)extra;
    return 0;
}

static Status do_nothing(void *handle) {
    (void)handle;
    return 0;
}

static Status record_nothing(void *event, void *stream) {
    (void)event, (void)stream;
    return 0;
}

static Status elapsed_nothing(float *milliseconds, void *begin, void *end) {
    (void)begin, (void)end;
    *milliseconds = 0;
    return 0;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static Status issue(const struct launcher *launcher, long launches) {
    LaunchKernel *launch = launcher->launch;
    void *function = launcher->function, *stream = launcher->stream;
    for (long i = 0; i < launches; i++) {
        Status status = launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        if (status != 0) return status;
    }
    return 0;
}

/* Seconds of so many launches, three views of the same ones: until the host had issued the first `few`, between the
 * device's events around all, and by the host's clock around the events.
 *
 * The clock is read before the first event is issued and after the device has passed the last, so that what the events
 * see lies within what the clock sees. A device's queue takes only so many launches; issuing more than `few` would
 * measure how fast it drains.
 */
Status time_launches(const struct launcher *launcher, long launches, long few, double *issued, double *on_device,
                     double *wall) {
    float milliseconds = 0;
    Status status = launcher->synchronize(launcher->stream);
    if (status != 0) return status;
    double begun = now();
    status = launcher->record(launcher->begin, launcher->stream);
    double recorded = now();
    if (status == 0) status = issue(launcher, few);
    *issued = now() - recorded;
    if (status == 0) status = issue(launcher, launches - few);
    if (status == 0) status = launcher->record(launcher->end, launcher->stream);
    if (status == 0) status = launcher->wait(launcher->end);
    *wall = now() - begun;
    if (status == 0) status = launcher->elapsed(&milliseconds, launcher->begin, launcher->end);
    *on_device = 1e-3 * (double)milliseconds;
    return status;
}

/* Seconds of one launch until the host knows that it has ended; no event is in its way. */
Status time_one(const struct launcher *launcher, double *wall) {
    Status status = launcher->synchronize(launcher->stream);
    double begun = now();
    if (status == 0) status = issue(launcher, 1);
    if (status == 0) status = launcher->synchronize(launcher->stream);
    *wall = now() - begun;
    return status;
}

/* What the driver says about a status. */
const char *explain(const struct launcher *launcher, Status status) {
    const char *words = NULL;
    if (launcher->explain != NULL) launcher->explain(status, &words);
    return words != NULL ? words : "unknown error";
}

/* A launcher that launches nothing: what remains is the loop. */
struct launcher *open_empty_loop(void) {
    struct launcher *launcher = calloc(1, sizeof *launcher);
    if (launcher == NULL) return NULL;
    launcher->launch = launch_nothing;
    launcher->synchronize = do_nothing;
    launcher->wait = do_nothing;
    launcher->record = record_nothing;
    launcher->elapsed = elapsed_nothing;
    return launcher;
}

static void *symbol(void *driver, const char *name, char *message, size_t size) {
    void *found = dlsym(driver, name);
    if (found == NULL && message[0] == '\0') snprintf(message, size, "the driver has no %s", name);
    return found;
}

/* A launcher for one device, in the context that the process has there already.
 *
 * Returns NULL with the reason in `message` where that fails. What it holds stays until the process ends.
 */
struct launcher *open_launcher(int ordinal, const char *ptx, const char *name, char *message, size_t size) {
    message[0] = '\0';
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        snprintf(message, size, "%s", dlerror());
        return NULL;
    }
    Status (*initialize)(unsigned) = symbol(driver, "cuInit", message, size);
    Status (*get_device)(int *, int) = symbol(driver, "cuDeviceGet", message, size);
    Status (*retain)(void **, int) = symbol(driver, "cuDevicePrimaryCtxRetain", message, size);
    Status (*set_current)(void *) = symbol(driver, "cuCtxSetCurrent", message, size);
    Status (*load_module)(void **, const void *) = symbol(driver, "cuModuleLoadData", message, size);
    Status (*get_function)(void **, void *, const char *) = symbol(driver, "cuModuleGetFunction", message, size);
    Status (*create_stream)(void **, unsigned) = symbol(driver, "cuStreamCreate", message, size);
    Status (*create_event)(void **, unsigned) = symbol(driver, "cuEventCreate", message, size);
    struct launcher opened = {
        .launch = (LaunchKernel *)symbol(driver, "cuLaunchKernel", message, size),
        .synchronize = symbol(driver, "cuStreamSynchronize", message, size),
        .record = symbol(driver, "cuEventRecord", message, size),
        .wait = symbol(driver, "cuEventSynchronize", message, size),
        .elapsed = symbol(driver, "cuEventElapsedTime", message, size),
        .explain = symbol(driver, "cuGetErrorString", message, size),
    };
    if (message[0] != '\0') return NULL;

    int device = 0;
    void *context = NULL, *module = NULL;
    const char *doing = "cuInit";
    Status status = initialize(0);
    if (status == 0) doing = "cuDeviceGet", status = get_device(&device, ordinal);
    if (status == 0) doing = "cuDevicePrimaryCtxRetain", status = retain(&context, device);
    if (status == 0) doing = "cuCtxSetCurrent", status = set_current(context);
    if (status == 0) doing = "cuModuleLoadData", status = load_module(&module, ptx);
    if (status == 0) doing = "cuModuleGetFunction", status = get_function(&opened.function, module, name);
    if (status == 0) doing = "cuStreamCreate", status = create_stream(&opened.stream, NON_BLOCKING_STREAM);
    if (status == 0) doing = "cuEventCreate", status = create_event(&opened.begin, 0);
    if (status == 0) doing = "cuEventCreate", status = create_event(&opened.end, 0);
    if (status != 0) {
        snprintf(message, size, "%s failed: %s", doing, explain(&opened, status));
        return NULL;
    }
    struct launcher *launcher = malloc(sizeof *launcher);
    if (launcher != NULL) *launcher = opened;
    else snprintf(message, size, "no memory");
    return launcher;
}
