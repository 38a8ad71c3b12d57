/*
 * The commands of the library to the kernel pass through `command` of the program. It waits for events with write(2), which
 * can be cancelled, and makes all other commands with syscall(2).
 */
#ifndef TESTS_C_COMMANDS_H
#define TESTS_C_COMMANDS_H

#include "cases.h"

#include <dlfcn.h>
#include <rdma/rdma_cma_abi.h>

static ssize_t command(int fd, const void *data, size_t len);

static long (*next_syscall(void))(long, ...)
{
	return (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
}

static inline ssize_t to_kernel(int fd, const void *data, size_t len)
{
	return next_syscall()(SYS_write, fd, data, len);
}

ssize_t write(int fd, const void *data, size_t len)
{
	return command(fd, data, len);
}

long syscall(long number, ...)
{
	long arguments[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		arguments[i] = va_arg(list, long);
	va_end(list);
	/* Not to an eventfd. */
	if (number == SYS_write && (size_t)arguments[2] > sizeof(struct ucma_abi_cmd_hdr))
		return command((int)arguments[0], (const void *)arguments[1], (size_t)arguments[2]);
	return next_syscall()(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

#endif
