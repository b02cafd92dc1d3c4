"""OpenGL without a display: the one that works, chosen before MuJoCo's renderer is imported: at import it is fixed.

Without this, on a machine without a display, that renderer picks GLFW and ends the first frame with a fatal error.
"""

from __future__ import annotations

import ctypes
import os
import sys

ADVICE = (
    'install an OpenGL that needs no display ("apt-get install libegl1" or "apt-get install libosmesa6", then start '
    "the program again), or set MUJOCO_GL to egl, osmesa or glfw before the program starts"
)

_EGL_PLATFORM_DEVICE = 0x313F
_rendered = _rendered_before_fork = False


def _note_fork() -> None:
    global _rendered_before_fork
    _rendered_before_fork = _rendered


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def begin_rendering() -> None:
    """Check before anything is rendered; RuntimeError in a fork of a process that has rendered.

    The renderer of such a fork waits forever for a thread that was not copied.
    """
    global _rendered
    if _rendered_before_fork:
        raise RuntimeError(
            "this process was forked from one that had already rendered with MuJoCo, and OpenGL does not survive a "
            'fork; make vector envs with context="forkserver" (the default) or "spawn"'
        )
    _rendered = True


def choose_gl() -> None:
    """Set MUJOCO_GL if it is not set and there is no display: `egl` or `osmesa`, whichever works, else `disabled`.

    With `disabled` everything but rendering works. Nothing is changed where there is a display, on other systems than
    Linux, or once the renderer is imported.
    """
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform != "linux" or has_display or "MUJOCO_GL" in os.environ or "dm_control" in sys.modules:
        return
    os.environ["MUJOCO_GL"] = "egl" if _egl_works() else "osmesa" if _osmesa_works() else "disabled"


def _osmesa_works() -> bool:
    # PyOpenGL looks for the unversioned name first, and asks ctypes for the others.
    from ctypes.util import find_library

    return find_library("OSMesa") is not None


def _egl_works() -> bool:
    """Return whether some device can be initialised: the library alone may be there without a driver."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    pointer = ctypes.c_void_p
    egl.eglGetProcAddress.restype, egl.eglGetProcAddress.argtypes = pointer, [ctypes.c_char_p]
    egl.eglInitialize.argtypes, egl.eglTerminate.argtypes = [pointer, pointer, pointer], [pointer]
    found = [egl.eglGetProcAddress(name) for name in (b"eglQueryDevicesEXT", b"eglGetPlatformDisplayEXT")]
    if not all(found):
        return False
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, pointer, pointer)(found[0])
    display_of = ctypes.CFUNCTYPE(pointer, ctypes.c_uint, pointer, pointer)(found[1])
    devices, count = (pointer * 16)(), ctypes.c_int()
    if not query(len(devices), devices, ctypes.byref(count)):
        return False
    for device in devices[: count.value]:
        display = display_of(_EGL_PLATFORM_DEVICE, device, None)
        if display and egl.eglInitialize(display, None, None):
            egl.eglTerminate(display)
            return True
    return False
