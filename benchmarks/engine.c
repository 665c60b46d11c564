/* A prefill and a decode engine that cost nothing: one thread, epoll, two ports.
 *
 * Prefill port: every POST is answered at once with kv_transfer_params.
 * Decode port: a body with "stream":true gets an event stream of max_tokens events, `seed` of them
 * per second (0: as fast as they go), each in its own HTTP chunk and its own send; then usage and
 * [DONE]. Any other POST gets one JSON answer. Every event carries the time of its send, so that a
 * client on the same machine can tell how long it was under way.
 * Any port: GET answers health checks and metrics.
 *
 * usage: engine HOST PREFILL_PORT DECODE_PORT       build: gcc -O2 -o bin/engine engine.c
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
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

enum role { PREFILL, DECODE };
enum { IDLE = -1, MAX_EVENTS = 512, READ_SIZE = 1 << 16 };

struct buffer { char *data; size_t len, cap; };

struct peer {
  int fd, is_listener, wants_write;
  enum role role;
  struct buffer in, out;
  size_t written;
  int stream_at;                 /* index in `streams`, or IDLE */
  long sent, total;              /* events of the running stream */
  double per_second;
  uint64_t began;
};

static int poller;
static struct peer **streams;
static int num_streams, cap_streams;
static char prefill_json[8192], decode_json[4096];

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void append(struct buffer *b, const char *data, size_t len) {
  if (b->len + len + 1 > b->cap) {
    b->cap = 2 * (b->len + len + 1);
    b->data = realloc(b->data, b->cap);
  }
  memcpy(b->data + b->len, data, len);
  b->len += len;
  b->data[b->len] = 0;
}

static void watch(struct peer *p, int for_write) {
  if (p->wants_write == for_write) return;
  p->wants_write = for_write;
  struct epoll_event e = {.events = EPOLLIN | (for_write ? EPOLLOUT : 0), .data.ptr = p};
  epoll_ctl(poller, EPOLL_CTL_MOD, p->fd, &e);
}

/* 1: all is out, 0: the socket is full, -1: the connection is gone */
static int flush(struct peer *p) {
  while (p->written < p->out.len) {
    ssize_t n = send(p->fd, p->out.data + p->written, p->out.len - p->written, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno != EAGAIN) return -1;
      watch(p, 1);
      return 0;
    }
    p->written += n;
  }
  p->written = p->out.len = 0;
  watch(p, 0);
  return 1;
}

static void stream_add(struct peer *p) {
  if (num_streams == cap_streams) {
    cap_streams = cap_streams ? 2 * cap_streams : 1024;
    streams = realloc(streams, cap_streams * sizeof *streams);
  }
  p->stream_at = num_streams;
  streams[num_streams++] = p;
}

static void stream_remove(struct peer *p) {
  if (p->stream_at == IDLE) return;
  streams[p->stream_at] = streams[--num_streams];
  streams[p->stream_at]->stream_at = p->stream_at;
  p->stream_at = IDLE;
}

static void hang_up(struct peer *p) {
  stream_remove(p);
  close(p->fd);
  free(p->in.data);
  free(p->out.data);
  free(p);
}

static void answer(struct peer *p, const char *type, const char *body) {
  char head[256];
  int n = snprintf(head, sizeof head,
                   "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n",
                   type, strlen(body));
  append(&p->out, head, n);
  append(&p->out, body, strlen(body));
}

static void put_event(struct peer *p, const char *rest) {
  char event[512], chunk[640];
  int n = snprintf(event, sizeof event,
                   "data: {\"id\":\"ts-%020llu\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
                   "\"model\":\"bench\",%s}\n\n", (unsigned long long)now_ns(), rest);
  n = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n", n, event);
  append(&p->out, chunk, n);
}

/* Put the stream's next event; the last one ends it. */
static void put_next(struct peer *p) {
  if (p->sent < p->total) {
    char rest[256];
    snprintf(rest, sizeof rest,
             "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token%04ld\"},\"logprobs\":null,"
             "\"finish_reason\":null,\"token_ids\":null}],\"prompt_token_ids\":null", p->sent++);
    put_event(p, rest);
    return;
  }
  put_event(p, "\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"total_tokens\":300,\"completion_tokens\":200}");
  const char *end = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
  append(&p->out, end, strlen(end));
  stream_remove(p);
}

static uint64_t due(const struct peer *p) {
  return p->per_second > 0 ? p->began + (uint64_t)(p->sent * 1e9 / p->per_second) : 0;
}

static int advance(struct peer *p, uint64_t now) {
  do {
    put_next(p);
    int state = flush(p);
    if (state <= 0) return state;
  } while (p->stream_at != IDLE && p->per_second > 0 && due(p) <= now);
  return 1;
}

static double number_after(const char *body, const char *key, double otherwise) {
  const char *at = strstr(body, key);
  if (!at) return otherwise;
  at += strlen(key);
  while (*at == ' ' || *at == ':') at++;
  return strtod(at, NULL);
}

static void serve(struct peer *p, const char *head, const char *body) {
  if (!strncmp(head, "GET ", 4)) {
    answer(p, "text/plain",
           "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"0\"} 0\n"
           "vllm:kv_cache_usage_perc{engine=\"0\"} 0.1\nprocess_start_time_seconds 1.7e9\n");
  } else if (p->role == PREFILL) {
    answer(p, "application/json", prefill_json);
  } else if (strstr(body, "\"stream\":true") || strstr(body, "\"stream\": true")) {
    const char *start = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                        "transfer-encoding: chunked\r\n\r\n";
    append(&p->out, start, strlen(start));
    p->total = number_after(body, "\"max_tokens\"", 200);
    p->per_second = number_after(body, "\"seed\"", 0);
    p->sent = 0;
    p->began = now_ns();
    stream_add(p);
  } else {
    answer(p, "application/json", decode_json);
  }
}

/* Serve every whole request that has come. A client may send Content-Length or chunks. */
static int process(struct peer *p) {
  while (p->stream_at == IDLE && p->in.len) {
    char *end = memmem(p->in.data, p->in.len, "\r\n\r\n", 4);
    if (!end) return 1;
    size_t start = end + 4 - p->in.data, need = start;
    *end = 0;
    char *length = strcasestr(p->in.data, "\ncontent-length:");
    int is_chunked = strcasestr(p->in.data, "\ntransfer-encoding:") != NULL;
    if (length) need += strtoul(length + 16, NULL, 10);
    *end = '\r';
    if (is_chunked) {
      char *last = memmem(end + 4, p->in.len - start, "0\r\n\r\n", 5);
      if (!last) return 1;
      need = last + 5 - p->in.data;
    }
    if (p->in.len < need) return 1;
    char kept = p->in.data[need];
    p->in.data[need] = 0;
    serve(p, p->in.data, p->in.data + start);
    p->in.data[need] = kept;
    memmove(p->in.data, p->in.data + need, p->in.len - need + 1);
    p->in.len -= need;
    if (flush(p) < 0) return -1;
    if (p->stream_at != IDLE && p->per_second <= 0 && advance(p, now_ns()) < 0) return -1;
  }
  return 1;
}

static int take(struct peer *p) {
  static char data[READ_SIZE];
  for (;;) {
    ssize_t n = recv(p->fd, data, sizeof data, 0);
    if (n == 0) return -1;
    if (n < 0) {
      if (errno != EAGAIN) return -1;
      break;
    }
    append(&p->in, data, n);
    if (n < (ssize_t)sizeof data) break;
  }
  return process(p);
}

static struct peer *add_peer(int fd, enum role role, int is_listener) {
  struct peer *p = calloc(1, sizeof *p);
  p->fd = fd;
  p->role = role;
  p->is_listener = is_listener;
  p->stream_at = IDLE;
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};
  epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
  return p;
}

static void listen_on(const char *host, int port, enum role role) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  inet_pton(AF_INET, host, &a.sin_addr);
  if (bind(fd, (void *)&a, sizeof a) || listen(fd, 4096)) {
    perror("engine: bind");
    exit(1);
  }
  add_peer(fd, role, 1);
}

static void accept_all(struct peer *listener) {
  for (;;) {
    int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK), yes = 1;
    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    add_peer(fd, listener->role, 0);
  }
}

static int wait_ms(void) {
  uint64_t now = now_ns();
  int wait = num_streams ? 100 : 1000;
  for (int i = 0; i < num_streams && wait; i++) {
    if (streams[i]->wants_write) continue;
    uint64_t at = due(streams[i]);
    int ms = at <= now ? 0 : (int)((at - now) / 1000000) + 1;
    if (ms < wait) wait = ms;
  }
  return wait;
}

static void prepare_answers(void) {
  char ids[1024], text[701];
  int n = 0;
  for (int i = 0; i < 128; i++) n += sprintf(ids + n, "%s%d", i ? "," : "", 1000 + 7 * i);
  memset(text, 'y', 700);
  text[700] = 0;
  snprintf(prefill_json, sizeof prefill_json,
           "{\"id\":\"cmpl-p\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"bench\",\"choices\":"
           "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"x\"},\"finish_reason\":\"length\"}],"
           "\"usage\":{\"prompt_tokens\":100,\"total_tokens\":101,\"completion_tokens\":1},\"kv_transfer_params\":"
           "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":[[%s]],"
           "\"remote_engine_id\":\"3c1a2b9e-engine\",\"remote_request_id\":\"cmpl-1234\","
           "\"remote_host\":\"127.0.0.1\",\"remote_port\":5600,\"tp_size\":1}}", ids);
  snprintf(decode_json, sizeof decode_json,
           "{\"id\":\"cmpl-d\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"bench\",\"choices\":"
           "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"%s\"},\"finish_reason\":\"length\"}],"
           "\"usage\":{\"prompt_tokens\":100,\"total_tokens\":300,\"completion_tokens\":200}}", text);
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fputs("usage: engine HOST PREFILL_PORT DECODE_PORT\n", stderr);
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  poller = epoll_create1(0);
  prepare_answers();
  listen_on(argv[1], atoi(argv[2]), PREFILL);
  listen_on(argv[1], atoi(argv[3]), DECODE);
  struct epoll_event ready[MAX_EVENTS];
  for (;;) {
    int n = epoll_wait(poller, ready, MAX_EVENTS, wait_ms());
    for (int i = 0; i < n; i++) {
      struct peer *p = ready[i].data.ptr;
      if (p->is_listener) {
        accept_all(p);
        continue;
      }
      int state = 1;
      if (ready[i].events & EPOLLOUT) state = flush(p);
      if (state >= 0 && (ready[i].events & ~EPOLLOUT)) state = take(p);
      if (state < 0) hang_up(p);
    }
    uint64_t now = now_ns();
    for (int i = num_streams - 1; i >= 0; i--) {
      if (i >= num_streams) continue;
      struct peer *p = streams[i];
      if (p->wants_write || due(p) > now) continue;
      if (advance(p, now) < 0) hang_up(p);
      else if (p->stream_at == IDLE && process(p) < 0) hang_up(p);
    }
  }
}
