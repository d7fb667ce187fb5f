"""How networks relate to the same networks in timm and torchvision."""
