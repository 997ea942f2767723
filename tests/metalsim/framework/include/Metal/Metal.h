// The part of Metal's interface that compute needs, with Apple's selectors and values. Held against Apple's metadata by
// tests/test_metalsim_framework.py.
#pragma once
#import <Foundation/Foundation.h>
#import <Metal/MTLBuffer.h>
#import <Metal/MTLCommandBuffer.h>
#import <Metal/MTLCommandEncoder.h>
#import <Metal/MTLComputePipeline.h>
#import <Metal/MTLDevice.h>
#import <Metal/MTLEvent.h>
#import <Metal/MTLLibrary.h>
#import <Metal/MTLTypes.h>
