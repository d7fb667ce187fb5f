// The program of the page: predicts the images that the user selects, in the browser.

import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";

import { Bundle, describe } from "./bundle.mjs";

ort.env.wasm.wasmPaths = new URL("./node_modules/onnxruntime-web/dist/", import.meta.url).href;
ort.env.wasm.numThreads = 1; // more threads need the headers of cross-origin isolation
ort.env.logLevel = "error";

const output = document.querySelector("#output");

async function read(name) {
  const response = await fetch(new URL(`../../${name}`, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

// Rejects what other programs of the bundle reject, although the browser could decode it.
function checkFormat(data) {
  if (data[0] === 0x89 && data[1] === 0x50) return; // PNG
  if (data[0] !== 0xff || data[1] !== 0xd8) throw new Error("expected a JPEG or PNG file");
  for (let at = 2; at + 9 < data.length && data[at] === 0xff; ) {
    const marker = data[at + 1];
    const isFrame = marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker);
    if (isFrame && data[at + 9] === 4) throw new Error("CMYK is not supported; convert the image to RGB");
    if (isFrame) return;
    at += marker === 0xff ? 1 : 2 + 256 * data[at + 2] + data[at + 3]; // any number of bytes 0xff can precede a marker
  }
}

// Returns the upright RGB pixels of an image file. Colour profiles and alpha are ignored. A 2D canvas would
// multiply colours by alpha, so the pixels are read from a texture of WebGL.
async function decode(data) {
  checkFormat(data);
  const bitmap = await createImageBitmap(new Blob([data]), {
    colorSpaceConversion: "none",
    imageOrientation: "from-image",
    premultiplyAlpha: "none",
  });
  const { height, width } = bitmap;
  const gl = new OffscreenCanvas(1, 1).getContext("webgl2");
  if (!gl) throw new Error("this browser has no WebGL 2");
  gl.pixelStorei(gl.UNPACK_PREMULTIPLY_ALPHA_WEBGL, false);
  gl.pixelStorei(gl.UNPACK_COLORSPACE_CONVERSION_WEBGL, gl.NONE);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, bitmap);
  gl.bindFramebuffer(gl.FRAMEBUFFER, gl.createFramebuffer());
  gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, gl.getParameter(gl.TEXTURE_BINDING_2D), 0);
  const rgba = new Uint8Array(4 * height * width);
  gl.readPixels(0, 0, width, height, gl.RGBA, gl.UNSIGNED_BYTE, rgba);
  if (gl.getError() !== gl.NO_ERROR) throw new Error(`an image of ${width} x ${height} pixels is too large`);
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  bitmap.close();
  const values = new Uint8Array(3 * height * width);
  for (let i = 0, j = 0; i < rgba.length; i += 4) {
    values[j++] = rgba[i];
    values[j++] = rgba[i + 1];
    values[j++] = rgba[i + 2];
  }
  return { height, width, values };
}

async function show(work) {
  output.textContent = "running …";
  try {
    output.textContent = await work();
  } catch (error) {
    output.textContent = `error: ${error.message}`;
  }
}

const bundle = await Bundle.open({
  read,
  decode,
  createSession: (data) => ort.InferenceSession.create(data, { executionProviders: ["wasm"] }),
  Tensor: ort.Tensor,
}).catch((error) => {
  output.textContent = `error: ${error.message}`;
  throw error;
});

const verify = () => show(async () => (await bundle.verify()).text);
const input = document.querySelector("#file");
input.addEventListener("change", () =>
  show(async () => {
    const lines = [];
    for (const file of input.files) {
      const classes = await bundle.predict(new Uint8Array(await file.arrayBuffer()));
      lines.push(`${file.name}: ${describe(classes)}`);
    }
    return lines.join("\n");
  }),
);
document.querySelector("#verify").addEventListener("click", verify);
for (const control of document.querySelectorAll("input, button")) control.disabled = false;
output.textContent = "ready";
if (new URLSearchParams(location.search).has("verify")) await verify();
