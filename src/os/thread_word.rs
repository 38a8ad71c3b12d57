//! Two words of each thread, in the static block of thread-local data.
//!
//! The usual model of a shared library calls a function for the address of such a word, which costs
//! more than all that a call does with it. Here the linker knows the distance from the thread
//! pointer.

/// Names a word.
#[derive(Clone, Copy)]
pub enum Word {
    /// See [`crate::os::mark`].
    Mark,
    /// See [`crate::os::cancel`].
    Cancel,
}

/// The words of the calling thread, for several accesses.
pub use words::Words;

/// Returns a word of the calling thread.
#[inline]
pub fn read(word: Word) -> usize {
    Words::here().read(word)
}

/// Changes a word of the calling thread.
#[inline]
pub fn write(word: Word, value: usize) {
    Words::here().write(word, value);
}

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(all(test, loom))))]
mod words {
    use std::arch::{asm, global_asm};

    use super::Word;

    global_asm!(
        ".pushsection .tbss.rdmacm_words, \"awT\", %nobits",
        ".globl rdmacm_words",
        ".hidden rdmacm_words",
        ".type rdmacm_words, %object",
        ".size rdmacm_words, 16",
        ".p2align 3",
        "rdmacm_words:",
        ".zero 16",
        ".popsection",
    );

    /// Not for another thread: a pointer is neither `Send` nor `Sync`.
    #[derive(Clone, Copy, Debug)]
    pub struct Words(*mut usize);

    #[inline]
    fn words() -> *mut usize {
        let words: *mut usize;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: reads the thread pointer, and the distance of the words from it.
        unsafe {
            asm!(
                "mov {words}, qword ptr fs:[0]",
                "add {words}, qword ptr [rip + rdmacm_words@GOTTPOFF]",
                words = out(reg) words,
                options(nostack, nomem, pure),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: reads the thread pointer, and the distance of the words from it.
        unsafe {
            asm!(
                "mrs {words}, tpidr_el0",
                "adrp {distance}, :gottprel:rdmacm_words",
                "ldr {distance}, [{distance}, :gottprel_lo12:rdmacm_words]",
                "add {words}, {words}, {distance}",
                words = out(reg) words,
                distance = out(reg) _,
                options(nostack, nomem, pure),
            );
        }
        words
    }

    impl Words {
        #[inline]
        pub fn here() -> Words {
            Words(words())
        }

        /// Returns their address, which no other thread of the process has.
        #[inline]
        pub fn address(self) -> usize {
            self.0.addr()
        }

        #[inline]
        pub fn read(self, word: Word) -> usize {
            // SAFETY: one of the two words of this thread. Only this thread and its signal handlers
            // access it.
            unsafe { self.0.add(word as usize).read_volatile() }
        }

        #[inline]
        pub fn write(self, word: Word, value: usize) {
            // SAFETY: one of the two words of this thread. Only this thread and its signal handlers
            // access it.
            unsafe { self.0.add(word as usize).write_volatile(value) };
        }
    }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(all(test, loom)))))]
mod words {
    use std::cell::Cell;

    use super::Word;

    #[derive(Clone, Copy, Debug)]
    pub struct Words;

    std::thread_local! {
        static WORDS: [Cell<usize>; 2] = const { [const { Cell::new(0) }; 2] };
    }

    impl Words {
        #[inline]
        pub fn here() -> Words {
            Words
        }

        #[inline]
        pub fn address(self) -> usize {
            WORDS.with(|words| std::ptr::from_ref(words).addr())
        }

        #[inline]
        pub fn read(self, word: Word) -> usize {
            WORDS.with(|words| words[word as usize].get())
        }

        #[inline]
        pub fn write(self, word: Word, value: usize) {
            WORDS.with(|words| words[word as usize].set(value));
        }
    }
}
