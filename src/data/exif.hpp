#pragma once
#include "cuttle/data.hpp"
#include "data/bytes.hpp"

namespace cuttle::data {

/// How the camera was held, 1 (upright) to 8, from an EXIF block without its "Exif" mark. Nothing else in the block is
/// looked at; 1 where the block is broken or says nothing that is valid.
int exif_orientation(Bytes tiff);

/// The picture as a viewer shows it: turned and mirrored as the orientation asks.
Picture upright(Picture picture, int orientation);

}  // namespace cuttle::data
