/* A closed-loop HTTP/1.1 load: C connections, each sends its next request when the last is answered.
 * One thread, epoll; bounded by the number of requests and by time. Prints one JSON object.
 *
 * usage: load HOST PORT CONNECTIONS REQUESTS MAX_SECONDS BODY_FILE RAMP_MS
 * build: gcc -O2 -o bin/load load.c
 *
 * An answer counts as an error if its connection breaks, its status is not 200, or a stream lacks
 * [DONE]. Latencies are in microseconds; `relay` is an event's arrival minus the send time in it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum state { WAITING, SENDING, HEAD, BODY, DONE };
enum { READ_SIZE = 1 << 16, MAX_EVENTS = 512 };

struct client {
  int fd;
  enum state state;
  size_t sent;
  char *data;
  size_t len, cap, body_at, scanned, framed;
  int is_chunked, status, is_terminated;
  size_t length;
  uint64_t start_at, sent_at, first_at;
};

struct samples { uint32_t *tenths; size_t len, cap; };

static const char *host;
static int port, poller;
static char *request;
static size_t request_len;
static long wanted, started, answered, errors, events;
static struct samples latency, first, relay;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void add(struct samples *s, uint64_t ns) {
  if (s->len == s->cap) {
    s->cap = s->cap ? 2 * s->cap : 65536;
    s->tenths = realloc(s->tenths, s->cap * sizeof *s->tenths);
  }
  s->tenths[s->len++] = ns / 100 > UINT32_MAX ? UINT32_MAX : ns / 100;
}

static int ascending(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static double quantile(struct samples *s, double q) {
  if (!s->len) return 0;
  qsort(s->tenths, s->len, sizeof *s->tenths, ascending);
  size_t at = q * s->len;
  return s->tenths[at < s->len ? at : s->len - 1] / 10.0;
}

static void watch(struct client *c, int for_write, int operation) {
  struct epoll_event e = {.events = EPOLLIN | (for_write ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(poller, operation, c->fd, &e);
}

static void dial(struct client *c) {
  int yes = 1;
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  inet_pton(AF_INET, host, &a.sin_addr);
  if (connect(c->fd, (void *)&a, sizeof a)) {
    perror("load: connect");
    exit(1);
  }
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  fcntl(c->fd, F_SETFL, O_NONBLOCK);
  watch(c, 0, EPOLL_CTL_ADD);
}

static int send_rest(struct client *c) {
  while (c->sent < request_len) {
    ssize_t n = send(c->fd, request + c->sent, request_len - c->sent, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno != EAGAIN) return -1;
      watch(c, 1, EPOLL_CTL_MOD);
      return 0;
    }
    c->sent += n;
  }
  if (c->state == SENDING) {
    c->state = HEAD;
    watch(c, 0, EPOLL_CTL_MOD);
  }
  return 0;
}

static int begin(struct client *c) {
  if (started >= wanted) {
    c->state = DONE;
    return 0;
  }
  started++;
  c->state = SENDING;
  c->sent = c->len = c->scanned = c->framed = 0;
  c->first_at = 0;
  c->is_terminated = 0;
  c->sent_at = now_ns();
  return send_rest(c);
}

static int finish(struct client *c) {
  add(&latency, now_ns() - c->sent_at);
  answered++;
  if (c->status != 200 || (c->is_chunked && !c->is_terminated)) errors++;
  return begin(c);
}

/* Note each event's way; event times stand in "id":"ts-<20 digits>". */
static void scan_events(struct client *c, uint64_t now) {
  for (;;) {
    char *at = memmem(c->data + c->scanned, c->len - c->scanned, "\"id\":\"ts-", 9);
    if (!at) break;
    if ((size_t)(at - c->data) + 30 > c->len) {
      c->scanned = at - c->data;
      return;
    }
    uint64_t sent_at = strtoull(at + 9, NULL, 10);
    add(&relay, now > sent_at ? now - sent_at : 0);
    events++;
    c->scanned = at - c->data + 30;
  }
  if (c->len - c->scanned > 40) c->scanned = c->len - 40;
}

static int read_head(struct client *c) {
  char *end = memmem(c->data, c->len, "\r\n\r\n", 4);
  if (!end) return 0;
  *end = 0;
  c->status = atoi(c->data + 9);
  c->is_chunked = strcasestr(c->data, "\ntransfer-encoding: chunked") != NULL;
  char *length = strcasestr(c->data, "\ncontent-length:");
  c->length = length ? strtoul(length + 16, NULL, 10) : 0;
  *end = '\r';
  c->body_at = c->scanned = c->framed = end + 4 - c->data;
  c->state = BODY;
  return 1;
}

/* Whether the body is whole. */
static int is_whole(struct client *c) {
  if (!c->is_chunked) return c->len - c->body_at >= c->length;
  for (;;) {
    char *line = memchr(c->data + c->framed, '\n', c->len - c->framed);
    if (!line) return 0;
    size_t size = strtoul(c->data + c->framed, NULL, 16);
    size_t end = line + 1 - c->data + size + 2;
    if (c->len < end) return 0;
    if (memmem(line + 1, size, "data: [DONE]", 12)) c->is_terminated = 1;
    c->framed = end;
    if (!size) return 1;
  }
}

static int take(struct client *c) {
  for (;;) {
    if (c->cap - c->len < READ_SIZE + 1) {
      c->cap = 2 * c->cap + 2 * READ_SIZE;
      c->data = realloc(c->data, c->cap);
    }
    ssize_t n = recv(c->fd, c->data + c->len, READ_SIZE, 0);
    if (n == 0) return -1;
    if (n < 0) return errno == EAGAIN ? 0 : -1;
    uint64_t now = now_ns();
    c->len += n;
    c->data[c->len] = 0;
    if (c->state == SENDING) c->state = HEAD;
    if (c->state == HEAD && !read_head(c)) continue;
    if (!c->first_at && c->len > c->body_at) {
      c->first_at = now;
      add(&first, now - c->sent_at);
    }
    if (c->is_chunked) scan_events(c, now);
    if (is_whole(c)) {
      if (finish(c) < 0) return -1;
      if (c->state == DONE) return 0;
    }
  }
}

static void read_request(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) {
    perror("load: body");
    exit(1);
  }
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  request = malloc(size + 512);
  request_len = sprintf(request,
                        "POST /v1/chat/completions HTTP/1.1\r\nHost: %s:%d\r\nContent-Type: application/json\r\n"
                        "Accept: */*\r\nUser-Agent: load\r\nAuthorization: Bearer sk-test\r\n"
                        "Content-Length: %ld\r\n\r\n", host, port, size);
  request_len += fread(request + request_len, 1, size, file);
  fclose(file);
}

int main(int argc, char **argv) {
  if (argc != 8) {
    fputs("usage: load HOST PORT CONNECTIONS REQUESTS MAX_SECONDS BODY_FILE RAMP_MS\n", stderr);
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  host = argv[1];
  port = atoi(argv[2]);
  int num_clients = atoi(argv[3]), num_begun = 0;
  wanted = atol(argv[4]);
  read_request(argv[6]);
  poller = epoll_create1(0);
  struct client *clients = calloc(num_clients, sizeof *clients);
  uint64_t began = now_ns(), until = began + (uint64_t)(atof(argv[5]) * 1e9);
  for (int i = 0; i < num_clients; i++) {
    dial(&clients[i]);
    clients[i].start_at = began + (uint64_t)atoi(argv[7]) * 1000000ull * i / num_clients;
  }
  struct epoll_event ready[MAX_EVENTS];
  while (answered < wanted) {
    uint64_t now = now_ns();
    if (now > until) break;
    for (; num_begun < num_clients && clients[num_begun].start_at <= now; num_begun++)
      if (begin(&clients[num_begun]) < 0) errors++;
    int n = epoll_wait(poller, ready, MAX_EVENTS, num_begun < num_clients ? 1 : 50);
    for (int i = 0; i < n; i++) {
      struct client *c = ready[i].data.ptr;
      int state = 0;
      if (ready[i].events & EPOLLOUT) state = send_rest(c);
      if (state >= 0 && (ready[i].events & ~EPOLLOUT)) state = take(c);
      if (state < 0) {
        if (c->state != WAITING && c->state != DONE) errors++, answered++;
        close(c->fd);
        dial(c);
        if (c->state != WAITING && begin(c) < 0) errors++;
      }
    }
  }
  double seconds = (now_ns() - began) / 1e9;
  printf("{\"answered\": %ld, \"errors\": %ld, \"seconds\": %.3f, \"events\": %ld, "
         "\"latency_us\": {\"p50\": %.1f, \"p99\": %.1f}, \"first_byte_us\": {\"p50\": %.1f, \"p99\": %.1f}, "
         "\"relay_us\": {\"p50\": %.1f, \"p99\": %.1f}}\n",
         answered, errors, seconds, events, quantile(&latency, .5), quantile(&latency, .99), quantile(&first, .5),
         quantile(&first, .99), quantile(&relay, .5), quantile(&relay, .99));
}
