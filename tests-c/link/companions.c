/*
 * What a program may have beside librdmacm.a: a static probe of its own, as systemtap's <sys/sdt.h> writes it, and
 * another Rust archive (rust.rs).
 */
#include <stdlib.h>

_Bool panics_are_caught(void);

__attribute__((constructor)) static void use_them(void)
{
	__asm__ volatile ("990:	nop\n"
			  ".pushsection .note.stapsdt,\"?\",\"note\"\n"
			  ".balign 4\n"
			  ".4byte 992f-991f, 994f-993f, 3\n"
			  "991:	.asciz \"stapsdt\"\n"
			  "992:	.balign 4\n"
			  "993:	.8byte 990b, _.stapsdt.base, 0\n"
			  ".asciz \"program\"\n"
			  ".asciz \"own\"\n"
			  ".asciz \"\"\n"
			  "994:	.balign 4\n"
			  ".popsection\n"
			  ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
			  ".weak _.stapsdt.base\n"
			  ".hidden _.stapsdt.base\n"
			  "_.stapsdt.base: .space 1\n"
			  ".size _.stapsdt.base, 1\n"
			  ".popsection\n");
	if (!panics_are_caught())
		abort();
}
