/*
 * LD_PRELOAD library: makes the n-th allocation of librdmacm fail, and counts the
 * allocations that it holds. A program controls it through the failmalloc_* functions (found with
 * dlsym) or FAILMALLOC_AT; FAILMALLOC_ALL=1 widens it to the allocations of every library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The text segment of librdmacm; found once, by failmalloc_arm or the first allocation after it. */
static uintptr_t text_start, text_end;
static bool everywhere;
static long fail_at, asked, failed, held;

/* Addresses handed to librdmacm and not freed yet; a fixed table, nothing here allocates. */
enum { SLOTS = 1 << 16 };
static void *slots[SLOTS];

static int find_text(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	(void)data;
	if (!info->dlpi_name || !strstr(info->dlpi_name, "librdmacm.so"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];

		if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
			text_start = info->dlpi_addr + part->p_vaddr;
			text_end = text_start + part->p_memsz;
		}
	}
	return 1;
}

static bool watched(const void *caller)
{
	uintptr_t address = (uintptr_t)caller;

	return text_end && (everywhere || (address >= text_start && address < text_end));
}

static void note(void *pointer)
{
	size_t slot = ((uintptr_t)pointer >> 4) % SLOTS;

	for (size_t i = 0; pointer && i < SLOTS; i++, slot = (slot + 1) % SLOTS) {
		void *empty = NULL;

		if (__atomic_compare_exchange_n(&slots[slot], &empty, pointer, false,
						__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
			__atomic_add_fetch(&held, 1, __ATOMIC_SEQ_CST);
			return;
		}
	}
}

/* Memory that librdmacm hands to the program may be freed by the program. */
static void forget(void *pointer)
{
	size_t slot = ((uintptr_t)pointer >> 4) % SLOTS;

	for (size_t i = 0; held && pointer && i < SLOTS; i++, slot = (slot + 1) % SLOTS) {
		void *wanted = pointer;

		if (__atomic_compare_exchange_n(&slots[slot], &wanted, NULL, false,
						__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
			__atomic_sub_fetch(&held, 1, __ATOMIC_SEQ_CST);
			return;
		}
	}
}

static bool must_fail(void)
{
	long number = __atomic_add_fetch(&asked, 1, __ATOMIC_SEQ_CST);

	if (fail_at <= 0 || number != fail_at)
		return false;
	__atomic_add_fetch(&failed, 1, __ATOMIC_SEQ_CST);
	errno = ENOMEM;
	return true;
}

/* ---- what programs call ------------------------------------------------------- */

/* Makes the n-th allocation from now on fail; 0: only counts. */
void failmalloc_arm(long n)
{
	dl_iterate_phdr(find_text, NULL);
	everywhere = getenv("FAILMALLOC_ALL") != NULL;
	asked = failed = 0;
	fail_at = n;
}

/* Stops failing; returns whether an allocation was made to fail. */
long failmalloc_disarm(void)
{
	fail_at = 0;
	return failed;
}

/* Returns the number of librdmacm's allocations that are not freed. */
long failmalloc_held(void)
{
	return held;
}

/* ---- the allocator's functions --------------------------------------------------- */

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *pointer);

void *malloc(size_t size)
{
	void *result;

	if (!watched(__builtin_return_address(0)))
		return __libc_malloc(size);
	if (must_fail())
		return NULL;
	result = __libc_malloc(size);
	note(result);
	return result;
}

void *calloc(size_t count, size_t size)
{
	void *result;

	if (!watched(__builtin_return_address(0)))
		return __libc_calloc(count, size);
	if (must_fail())
		return NULL;
	result = __libc_calloc(count, size);
	note(result);
	return result;
}

void *realloc(void *old, size_t size)
{
	void *result;

	if (!watched(__builtin_return_address(0))) {
		forget(old);
		return __libc_realloc(old, size);
	}
	if (must_fail())
		return NULL;
	forget(old);
	result = __libc_realloc(old, size);
	note(result);
	return result;
}

int posix_memalign(void **result, size_t alignment, size_t size)
{
	bool watch = watched(__builtin_return_address(0));

	if (watch && must_fail())
		return ENOMEM;
	*result = __libc_memalign(alignment, size);
	if (watch)
		note(*result);
	return *result ? 0 : ENOMEM;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	void *result;

	if (!watched(__builtin_return_address(0)))
		return __libc_memalign(alignment, size);
	if (must_fail())
		return NULL;
	result = __libc_memalign(alignment, size);
	note(result);
	return result;
}

void free(void *pointer)
{
	forget(pointer);
	__libc_free(pointer);
}
