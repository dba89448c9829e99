// The one place where the stb libraries are compiled. Formats that no dataset uses stay out: less code meets strange
// bytes.
#include <cstdlib>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wunused-function"
// Memory comes zeroed, because the JPEG decoder trusts tables that a broken file never defines; assertions are off,
// because broken files reach them.
#define STBI_MALLOC(bytes) std::calloc(1, bytes)
#define STBI_REALLOC(pointer, bytes) std::realloc(pointer, bytes)
#define STBI_FREE(pointer) std::free(pointer)
#define STBI_ASSERT(condition) static_cast<void>(0)
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_PNG
#define STBI_ONLY_JPEG
#define STBI_NO_STDIO
#include <stb/stb_image.h>
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STBI_WRITE_NO_STDIO
#include <stb/stb_image_write.h>
#if __has_include(<stb/stb_image_resize2.h>)
#define STB_IMAGE_RESIZE_IMPLEMENTATION
#include <stb/stb_image_resize2.h>
#else
#define STB_IMAGE_RESIZE_IMPLEMENTATION
#include <stb/stb_image_resize.h>
#endif
#pragma GCC diagnostic pop
