/* Shared by the cases of program: connections between two sockets of this process. */
#ifndef TESTS_PRELOAD_PROGRAM_H
#define TESTS_PRELOAD_PROGRAM_H

#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			printf("FAIL %s: line %d: %s (errno %d)\n", __func__, __LINE__, #condition, errno);            \
			return 1;                                                                                      \
		}                                                                                                      \
	} while (0)

/* The address of the last listener. */
extern struct sockaddr_in address;

int open_numbers(void);
int listener(int flags);
/* A thread: connects the socket to which it gets a pointer. */
void *connects(void *fd);
int pair(int fds[2]);
int works(int from, int to);

/* The cases. They return 1 after a failure, which they have printed. */
int lowest_number(void);
int flags(void);
int port_in_use(void);
int copies(void);
int guests(void);
int blind_close(void);
int limits(void);
int one_closer(void);
int nonblocking_by_ioctl(void);
int closed_unseen(void);
int closed_by_a_child(void);
int polls(void);
int selects(void);
int epolls(void);
int epoll_copies(void);
int selects_by_table_size(void);
int epoll_of_the_parent(void);
int sends_files(void);
int broken_pipe(void);
int vectors(void);
int cancelled_accept(void);

#endif
