/*
 * Run with librspreload-full.so: what it exports and the C library lacks fails with ENOSYS. Status 77 if the C library
 * has it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <spawn.h>
#include <stdio.h>

extern char **environ;

typedef int spawn_call(int *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
		       char *const[], char *const[]);

int main(void)
{
	static const char *const names[] = { "pidfd_spawn", "pidfd_spawnp" };
	void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
	char *arguments[] = { "true", NULL };
	int process, result;
	spawn_call *call;

	for (unsigned int i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (!libc || dlsym(libc, names[i]))
			return 77;
		*(void **)&call = dlsym(RTLD_DEFAULT, names[i]);
		errno = 0;
		result = call ? call(&process, "/bin/true", NULL, NULL, arguments, environ) : -1;
		if (result != ENOSYS || errno != 0) {
			printf("%s: %d, errno %d\n", names[i], result, errno);
			return 1;
		}
	}
	return 0;
}
