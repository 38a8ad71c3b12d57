/*
 * A small address and path service with configurable answers, for cm/compared/acm and cm/ours/bad_acm_service.
 * Message layout: see src/acm. Host byte order, as the service and its clients share a
 * machine; path records inside are in network order as on the wire.
 */
#ifndef TESTS_C_ACM_H
#define TESTS_C_ACM_H

#include "common.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define ACM_SOCKET "/run/ibacm.sock"
#define ACM_PORT_FILE "/run/ibacm.port"
enum { ACM_TYPE_NAME = 1, ACM_TYPE_IP4 = 2, ACM_TYPE_IP6 = 3, ACM_TYPE_PATH = 0x10 };
enum { ACM_FLAG_SOURCE = 1, ACM_FLAG_DEST = 2 };

struct acm_header {
	uint8_t version, opcode, status, data[3];
	uint16_t length;
	uint64_t tid;
};
struct acm_record {
	uint32_t flags;
	uint16_t type, reserved;
	uint8_t info[64];
};
struct acm_message {
	struct acm_header header;
	struct acm_record records[16];
};

/* Fills the answer: a copy of the request, which has no answer bit, as in what ibacm answers at
 * once. Returns the number of bytes to send; less than 0: close the connection, 0: do not answer. */
typedef long (*acm_answer)(const struct acm_message *request, struct acm_message *answer);

struct acm_server {
	int fd;
	acm_answer answer;
	bool show;
	int served, connections;
	pthread_t thread;
	pthread_mutex_t lock;
	int connection; /* the one that is served, -1 if none; under `lock` */
};

/* Listens on the socket of the service; only inside the lab. */
static inline void acm_require_lab(void)
{
	if (!getenv("LAB_OUT"))
		skip_all("the service's socket is only made inside the lab");
}

static inline void acm_show(const struct acm_message *request)
{
	const struct acm_header *header = &request->header;

	obs("request version %u opcode %u status %u data %u %u %u length %u", header->version,
	    header->opcode, header->status, header->data[0], header->data[1], header->data[2],
	    header->length);
	for (size_t i = 0; i < (header->length - sizeof(*header)) / sizeof(request->records[0]);
	     i++)
		obs("record flags %x type %x reserved %u info %s", request->records[i].flags,
		    request->records[i].type, request->records[i].reserved,
		    bytes_str(request->records[i].info, 64));
}

static inline bool acm_read_all(int fd, void *data, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t got = read(fd, (char *)data + done, len - done);

		if (got <= 0)
			return false;
		done += (size_t)got;
	}
	return true;
}

/* Serves one connection until it ends; the server prints its own lines. */
static inline void acm_serve(struct acm_server *server, int fd)
{
	struct acm_message request, answer;

	while (acm_read_all(fd, &request, sizeof(request.header))) {
		size_t rest = request.header.length - sizeof(request.header);
		long len;

		if (request.header.length < sizeof(request.header) ||
		    rest > sizeof(request.records) ||
		    !acm_read_all(fd, request.records, rest))
			break;
		if (server->show)
			acm_show(&request);
		memset(&answer, 0, sizeof(answer));
		answer.header = request.header;
		server->served++;
		len = server->answer(&request, &answer);
		if (len < 0)
			break;
		if (len > 0 && send(fd, &answer, (size_t)len, MSG_NOSIGNAL) != len)
			break;
	}
}

static inline void acm_set_connection(struct acm_server *server, int fd)
{
	pthread_mutex_lock(&server->lock);
	if (server->connection >= 0)
		close(server->connection);
	server->connection = fd;
	pthread_mutex_unlock(&server->lock);
}

static inline void *acm_body(void *argument)
{
	struct acm_server *server = argument;
	int fd;

	topic("service");
	while ((fd = accept(server->fd, NULL, NULL)) >= 0) {
		server->connections++;
		acm_set_connection(server, fd);
		acm_serve(server, fd);
		acm_set_connection(server, -1);
	}
	return NULL;
}

static inline bool acm_start(struct acm_server *server, acm_answer answer, bool show)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = ACM_SOCKET };

	memset(server, 0, sizeof(*server));
	server->answer = answer;
	server->show = show;
	server->connection = -1;
	pthread_mutex_init(&server->lock, NULL);
	unlink(ACM_SOCKET);
	unlink(ACM_PORT_FILE);
	server->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	return server->fd >= 0 && !bind(server->fd, (void *)&address, sizeof(address)) &&
	       !listen(server->fd, 4) &&
	       !pthread_create(&server->thread, NULL, acm_body, server);
}

/* Ends the service with its connections, as an exit would. The descriptors' numbers may be used
 * again only after the thread has ended. */
static inline void acm_stop(struct acm_server *server)
{
	shutdown(server->fd, SHUT_RDWR);
	pthread_mutex_lock(&server->lock);
	if (server->connection >= 0)
		shutdown(server->connection, SHUT_RDWR);
	pthread_mutex_unlock(&server->lock);
	pthread_join(server->thread, NULL);
	close(server->fd);
	unlink(ACM_SOCKET);
}

/* An answer with `count` path records between the device's own GIDs. */
static inline long acm_paths(struct acm_message *answer, int count)
{
	for (int i = 0; i < count; i++) {
		struct ibv_path_record *path = (void *)answer->records[i].info;

		answer->records[i].type = ACM_TYPE_PATH;
		answer->records[i].flags = i == 0 ? IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY |
						    IBV_PATH_FLAG_BIDIRECTIONAL
						  : IBV_PATH_FLAG_ALTERNATE;
		memset(path->sgid.raw, 0x11, 16);
		memset(path->dgid.raw, 0x22, 16);
		path->pkey = htobe16(0x8001);
		path->flowlabel_hoplimit = htobe32(0x12345u << 8 | 7);
		path->tclass = 9;
		path->slid = htobe16(3);
		path->dlid = htobe16(4);
		path->reversible_numpath = IBV_PATH_RECORD_REVERSIBLE | 1;
	}
	answer->header.length = (uint16_t)(sizeof(answer->header) +
					   (size_t)count * sizeof(answer->records[0]));
	return answer->header.length;
}

/* Answers without a path. */
static inline long acm_knows_no_path(const struct acm_message *request, struct acm_message *answer)
{
	(void)request;
	return acm_paths(answer, 0);
}

/* Answers that are a failure. */
static inline long acm_refuses(const struct acm_message *request, struct acm_message *answer)
{
	(void)request;
	answer->header.status = 5;
	answer->header.length = sizeof(answer->header);
	return sizeof(answer->header);
}

#endif
