/*
 * The functions of librspreload-full.so with variable arguments: dprintf(3). To define them in Rust needs an unstable
 * feature. Without stdio.h, which may define these names as macros.
 */
#include <stdarg.h>

int vdprintf(int fd, const char *format, va_list list);
int __vdprintf_chk(int fd, int flag, const char *format, va_list list);
int dprintf(int fd, const char *format, ...);
int __dprintf_chk(int fd, int flag, const char *format, ...);

int dprintf(int fd, const char *format, ...)
{
	va_list list;
	int result;

	va_start(list, format);
	result = vdprintf(fd, format, list);
	va_end(list);
	return result;
}

int __dprintf_chk(int fd, int flag, const char *format, ...)
{
	va_list list;
	int result;

	va_start(list, format);
	result = __vdprintf_chk(fd, flag, format, list);
	va_end(list);
	return result;
}
