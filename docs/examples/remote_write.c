/*
 * Writing into the memory of the peer, past its buffers: riomap and riowrite.
 *
 * remote_write -l PORT maps 4096 bytes for each client in turn, and prints what it has written.
 * remote_write ADDRESS PORT TEXT writes TEXT there.
 */
#include <rdma/rsocket.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LENGTH = 4096 };

static int fatal(const char *what)
{
	perror(what);
	exit(1);
}

static struct addrinfo *resolve(const char *address, const char *port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = address ? 0 : AI_PASSIVE }, *found;
	int error = getaddrinfo(address, port, &hints, &found);

	if (error) {
		fprintf(stderr, "%s\n", gai_strerror(error));
		exit(1);
	}
	return found;
}

static void serve_client(int fd, char *memory)
{
	off_t offset = riomap(fd, memory, LENGTH, PROT_WRITE, 0, -1);
	char done;

	/* A client that allows no mapping must not end the server. */
	if (offset < 0) {
		perror("riomap");
		return;
	}
	/* The peer cannot know the offset: it is data like any other. Client and server are of one architecture here. */
	if (rrecv(fd, &done, 1, MSG_WAITALL) != 1 || rsend(fd, &offset, sizeof(offset), 0) != sizeof(offset))
		return;
	/* The byte comes after what was written: both go by the same connection, in order. */
	if (rrecv(fd, &done, 1, MSG_WAITALL) != 1)
		return;
	/* First, so that the client cannot change what is printed. Its text need not end with 0. */
	if (riounmap(fd, memory, LENGTH))
		perror("riounmap");
	else
		printf("written: %.*s\n", LENGTH, memory);
	fflush(stdout);
}

static int serve(const char *port)
{
	struct addrinfo *own = resolve(NULL, port);
	int listener = rsocket(own->ai_family, SOCK_STREAM, 0), fd;
	char *memory = calloc(1, LENGTH);

	if (listener < 0 || !memory || rbind(listener, own->ai_addr, own->ai_addrlen) || rlisten(listener, 8))
		fatal("cannot listen");
	freeaddrinfo(own);
	printf("listening\n");
	fflush(stdout);
	while ((fd = raccept(listener, NULL, NULL)) >= 0) {
		memset(memory, 0, LENGTH);
		serve_client(fd, memory);
		rclose(fd);
	}
	return fatal("raccept");
}

static int write_text(const char *address, const char *port, const char *text)
{
	struct addrinfo *to = resolve(address, port);
	int fd = rsocket(to->ai_family, SOCK_STREAM, 0), places = 1;
	size_t length = strlen(text);
	off_t offset;

	/* Before connecting: how many mappings the peer may make. */
	if (fd < 0 || rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &places, sizeof(places)) ||
	    rconnect(fd, to->ai_addr, to->ai_addrlen))
		fatal("rconnect");
	freeaddrinfo(to);
	/* For a server that ends before it has sent all: no call fails then. */
	errno = ECONNRESET;
	/* The side that connects sends first, as iWARP requires. */
	if (rsend(fd, "?", 1, 0) != 1 || rrecv(fd, &offset, sizeof(offset), MSG_WAITALL) != sizeof(offset))
		fatal("cannot get the offset");
	if (riowrite(fd, text, length, offset, 0) != length)
		fatal("riowrite");
	if (rsend(fd, "!", 1, 0) != 1)
		fatal("rsend");
	return rclose(fd) != 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "-l"))
		return serve(argv[2]);
	if (argc == 4 && strlen(argv[3]) <= LENGTH)
		return write_text(argv[1], argv[2], argv[3]);
	fprintf(stderr, "usage: %s ADDRESS PORT TEXT | -l PORT\n", argv[0]);
	return 2;
}
