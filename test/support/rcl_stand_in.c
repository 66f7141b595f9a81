/* A stand-in for librcl.so and librcutils.so, to test layouts that no installed ROS 2 has.

   Without macros, the structs have the layout of Jazzy and Kilted. Each macro adds members to one
   struct, as a later release may do. Functions return 0 (RCL_RET_OK), and write whole structs, as
   rcl does. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef ALLOCATOR_END
#define ALLOCATOR_END
#endif
#ifndef ARRAY_MIDDLE
#define ARRAY_MIDDLE
#endif
#ifndef ARRAY_END
#define ARRAY_END
#endif
#ifndef INFO_MIDDLE
#define INFO_MIDDLE
#endif
#ifndef INFO_END
#define INFO_END
#endif
#ifndef WAIT_SET_MIDDLE
#define WAIT_SET_MIDDLE
#endif
#ifndef ERROR_BYTES
#define ERROR_BYTES 1024
#endif

typedef struct {
  void *allocate, *deallocate, *reallocate, *zero_allocate, *state;
  ALLOCATOR_END
} allocator_t;

typedef struct {
  uint8_t *buffer;
  size_t length, capacity;
  ARRAY_MIDDLE
  allocator_t allocator;
  ARRAY_END
} array_t;

typedef struct {
  int64_t source_timestamp, received_timestamp;
  INFO_MIDDLE
  uint64_t publication_sequence_number, reception_sequence_number;
  const char *implementation;
  uint8_t gid[16];
  bool from_intra_process;
  INFO_END
} info_t;

typedef struct {
  void **subscriptions; size_t subscriptions_count;
  void **guards; size_t guards_count;
  void **timers; size_t timers_count;
  WAIT_SET_MIDDLE
  void **clients; size_t clients_count;
  void **services; size_t services_count;
  void **events; size_t events_count;
  void *implementation;
} wait_set_t;

typedef struct { char text[ERROR_BYTES]; } error_string_t;

static uint8_t memory[16384];
static void *entries[8];

allocator_t rcutils_get_default_allocator(void) {
  allocator_t allocator;
  memset(&allocator, 0x11, sizeof allocator);
  return allocator;
}

int rcutils_uint8_array_init(array_t *array, size_t capacity, const allocator_t *allocator) {
  memset(array, 0, sizeof *array);
  array->buffer = memory;
  array->capacity = capacity;
  array->allocator = *allocator;
  return 0;
}

int rcutils_uint8_array_fini(array_t *array) { memset(array, 0, sizeof *array); return 0; }

error_string_t rcutils_get_error_string(void) {
  error_string_t error;
  memset(&error, 'e', sizeof error);
  error.text[3] = 0;
  return error;
}

void rcutils_reset_error(void) {}

int rcl_wait_set_init(wait_set_t *set, size_t subscriptions, size_t guards, size_t timers,
                      size_t clients, size_t services, size_t events, void *context,
                      allocator_t allocator) {
  (void)context, (void)allocator;
  memset(set, 0, sizeof *set);
  set->subscriptions = set->guards = set->events = entries;
  set->subscriptions_count = subscriptions, set->guards_count = guards;
  set->timers_count = timers, set->clients_count = clients;
  set->services_count = services, set->events_count = events;
  set->implementation = memory;
  return 0;
}

int rcl_wait_set_fini(wait_set_t *set) { memset(set, 0, sizeof *set); return 0; }
int rcl_wait_set_clear(wait_set_t *set) { (void)set; return 0; }
int rcl_wait_set_add_subscription(wait_set_t *set, void *entity, size_t *index) {
  (void)index;
  set->subscriptions[0] = entity;
  return 0;
}
int rcl_wait_set_add_guard_condition(wait_set_t *set, void *entity, size_t *index) {
  (void)set, (void)entity, (void)index;
  return 0;
}
int rcl_wait_set_add_event(wait_set_t *set, void *entity, size_t *index) {
  (void)set, (void)entity, (void)index;
  return 0;
}
int rcl_wait(wait_set_t *set, int64_t timeout) { (void)set, (void)timeout; return 0; }

int rcl_take_serialized_message(void *subscription, array_t *array, info_t *info, void *unused) {
  (void)subscription, (void)unused;
  memcpy(array->buffer, "image", 5);
  array->length = 5;
  memset(info, 0, sizeof *info);
  info->source_timestamp = 100, info->received_timestamp = 103;
  info->publication_sequence_number = 7, info->reception_sequence_number = 8;
  return 0;
}
